/* cuDNN, CUPTI and NVRTC, as far as they are asked when nothing is computed, traced or compiled by them. */
#include <stdlib.h>

#include "core.h"

/* --- libcudnn: graphs are accepted whatever they hold (attention, in PyTorch), and take one launch and no workspace --- */

API int cudnnCreate(void **handle) {
    *handle = calloc(1, 64);
    return 0;
}
API int cudnnDestroy(void *handle) {
    free(handle);
    return 0;
}
API int cudnnSetStream(void **handle, void *stream) {
    *handle = stream;
    return 0;
}
API int cudnnGetStream(void **handle, void **stream) {
    *stream = *handle;
    return 0;
}
API unsigned long cudnnGetVersion(void) { return 92000; }
API unsigned long cudnnGetCudartVersion(void) { return 13000; }
API int cudnnGetProperty(int kind, int *value) {
    *value = kind == 0 ? 9 : kind == 1 ? 20 : 0;
    return 0;
}
API const char *cudnnGetErrorString(int status) { return status ? "cuDNN failed" : "success"; }
API void cudnnGetLastErrorString(char *text, size_t room) {
    if (room) *text = 0;
}
API int cudnnBackendCreateDescriptor(int kind, void **descriptor) {
    int *made = calloc(1, 64);
    *made = kind;
    *descriptor = made;
    return 0;
}
API int cudnnBackendDestroyDescriptor(void *descriptor) {
    free(descriptor);
    return 0;
}
/* One engine for every graph: descriptors are the ones that the caller made, numbers are 0, lists of notes are empty. */
API int cudnnBackendGetAttribute(void *descriptor, int attribute, int type, int64_t wanted, int64_t *count, void *values) {
    (void)descriptor;
    enum { INT64 = 3, DESCRIPTOR = 15, INT32 = 23 }; /* cudnnBackendAttributeType_t */
    enum { KNOB_CHOICES = 302 };                     /* cudnnBackendAttributeName_t */
    bool one = (type == DESCRIPTOR && attribute != KNOB_CHOICES) || type == INT64 || type == INT32;
    if (count) *count = one ? 1 : 0;
    if (type == INT64 && wanted > 0 && values) *(int64_t *)values = 0;
    if (type == INT32 && wanted > 0 && values) *(int32_t *)values = 0;
    return 0;
}
API int cudnnBackendExecute(void **handle, void *plan, void *pack) {
    (void)plan, (void)pack;
    unsigned one[] = {1, 1, 1}, block[] = {384, 1, 1};
    return sim_launch("cudnn_graph", one, block, 0, *handle) ? 5000 /* CUDNN_STATUS_EXECUTION_FAILED */ : 0;
}

/* --- libcupti: no activities are recorded --- */

API int cuptiGetVersion(unsigned *version) {
    *version = 130000;
    return 0;
}
API int cuptiGetResultString(int result, const char **text) {
    (void)result;
    *text = "simulated";
    return 0;
}
API int cuptiActivityGetNextRecord(void *buffer, size_t bytes, void **record) {
    (void)buffer, (void)bytes, (void)record;
    return 12; /* CUPTI_ERROR_MAX_LIMIT_REACHED: no more */
}
API int cuptiActivityGetNumDroppedRecords(void *context, unsigned stream, size_t *dropped) {
    (void)context, (void)stream;
    *dropped = 0;
    return 0;
}
API int cuptiSubscribe(void **subscriber, void *callback, void *data) {
    (void)callback, (void)data;
    *subscriber = (void *)1;
    return 0;
}

/* --- libnvrtc: compiles nothing --- */

API int nvrtcVersion(int *major, int *minor) {
    *major = 13;
    *minor = 0;
    return 0;
}
API const char *nvrtcGetErrorString(int result) { return result ? "NVRTC_ERROR_COMPILATION" : "NVRTC_SUCCESS"; }
API int nvrtcCreateProgram(void **program) {
    (void)program;
    return 6; /* NVRTC_ERROR_COMPILATION */
}
