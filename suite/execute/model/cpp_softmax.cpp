// Softmax of scaled and masked scores as one pass over memory: an operator of PyTorch's dispatcher, in C++.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace {

// scores [B, H, T, S]; mask [1 or H, T, S], fp32, added to the scaled scores
at::Tensor attention_weights(const at::Tensor& scores, const at::Tensor& mask, double scale) {
  TORCH_CHECK(scores.dim() == 4 && mask.dim() == 3, "scores [B, H, T, S] and mask [1 or H, T, S]");
  const auto wide = scores.to(at::kFloat).contiguous();
  const auto bias = mask.to(at::kFloat).contiguous();
  const int64_t heads = wide.size(1), length = wide.size(2), columns = wide.size(3);
  TORCH_CHECK(bias.size(0) == 1 || bias.size(0) == heads, "a mask for one or for all heads");
  auto out = at::empty_like(wide);
  const float* in = wide.const_data_ptr<float>();
  const float* add = bias.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  const float factor = static_cast<float>(scale);
  const bool each = bias.size(0) > 1;
  at::parallel_for(0, wide.numel() / columns, std::max<int64_t>(1, 8192 / columns), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float* x = in + row * columns;
      const float* b = add + ((each ? row / length % heads : 0) * length + row % length) * columns;
      float* y = to + row * columns;
      float most = -std::numeric_limits<float>::infinity();
      for (int64_t i = 0; i < columns; ++i) {
        y[i] = x[i] * factor + b[i];
        most = std::max(most, y[i]);
      }
      float sum = 0;
      for (int64_t i = 0; i < columns; ++i) {
        y[i] = std::exp(y[i] - most);
        sum += y[i];
      }
      const float share = 1 / sum;
      for (int64_t i = 0; i < columns; ++i) y[i] *= share;
    }
  });
  return out.to(scores.scalar_type());
}

// (g - sum(g w)) w scale, row by row
at::Tensor attention_weights_backward(const at::Tensor& gradient, const at::Tensor& weights, double scale) {
  const auto g = gradient.to(at::kFloat).contiguous();
  const auto w = weights.to(at::kFloat).contiguous();
  const int64_t columns = w.size(-1);
  auto out = at::empty_like(w);
  const float* of = g.const_data_ptr<float>();
  const float* in = w.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  const float factor = static_cast<float>(scale);
  at::parallel_for(0, w.numel() / columns, std::max<int64_t>(1, 8192 / columns), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float* a = of + row * columns;
      const float* b = in + row * columns;
      float sum = 0;
      for (int64_t i = 0; i < columns; ++i) sum += a[i] * b[i];
      for (int64_t i = 0; i < columns; ++i) to[row * columns + i] = (a[i] - sum) * b[i] * factor;
    }
  });
  return out.to(gradient.scalar_type());
}

}  // namespace

TORCH_LIBRARY(ladder, library) {
  library.def("attention_weights(Tensor scores, Tensor mask, float scale) -> Tensor");
  library.def("attention_weights_backward(Tensor gradient, Tensor weights, float scale) -> Tensor");
}

TORCH_LIBRARY_IMPL(ladder, CPU, library) {
  library.impl("attention_weights", attention_weights);
  library.impl("attention_weights_backward", attention_weights_backward);
}
