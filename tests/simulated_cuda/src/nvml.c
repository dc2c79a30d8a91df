/* The management library, libnvidia-ml: as much as PyTorch itself asks of it. The suite asks through nvidia-ml-py, for
   which a Python module stands in. A device's handle is its number in the node, plus one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6 };

API int nvmlInit_v2(void) { return SUCCESS; }
API int nvmlInit(void) { return SUCCESS; }
API int nvmlShutdown(void) { return SUCCESS; }
API const char *nvmlErrorString(int result) { return result ? "simulated NVML error" : "Success"; }
API int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13000;
    return SUCCESS;
}
API int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)sim_physical_count();
    return SUCCESS;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= (unsigned)sim_physical_count()) return INVALID_ARGUMENT;
    *handle = (void *)(uintptr_t)(index + 1);
    return SUCCESS;
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **handle) {
    unsigned domain, bus;
    if (sscanf(text, "%x:%x:", &domain, &bus) != 2 || bus < 16) return INVALID_ARGUMENT;
    return nvmlDeviceGetHandleByIndex_v2(bus - 16, handle) ? NOT_FOUND : SUCCESS;
}
API int nvmlDeviceGetUUID(void *handle, char *text, unsigned length) {
    char whole[64];
    sim_device device = sim_physical((int)(uintptr_t)handle - 1);
    sim_uuid(&device, whole);
    if (strlen(whole) >= length) return INVALID_ARGUMENT;
    strcpy(text, whole);
    return SUCCESS;
}
API int nvmlDeviceGetName(void *handle, char *text, unsigned length) {
    snprintf(text, length, "%s", sim_physical((int)(uintptr_t)handle - 1).name);
    return SUCCESS;
}
API int nvmlDeviceGetGpuFabricInfoV(void *handle, void *information) {
    (void)handle;
    memset((char *)information + 4, 0, 28); /* behind the version: no cluster, state "not supported" */
    return SUCCESS;
}
API int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, unsigned *kind) {
    (void)handle, (void)link, (void)kind;
    return NOT_SUPPORTED;
}
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, void *information) {
    (void)handle, (void)link, (void)information;
    return NOT_SUPPORTED;
}
API int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, void *processes) {
    (void)handle, (void)processes;
    *count = 0;
    return SUCCESS;
}
