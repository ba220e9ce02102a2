// A linear layer with low-rank adapters per span of rows: y = x W^T + b + scale (drop(x) A^T) B^T.
#pragma once

#include <initializer_list>

#include "twinkle/nn/parameter.h"
#include "twinkle/nn/pass.h"

namespace twinkle::nn {

class Linear {
 public:
  /// `module` numbers it among the model's linears; weight and bias (may be null) belong to the model.
  Linear(Parameter* weight, Parameter* bias, int64_t module)
      : weight_(weight), bias_(bias), module_(module) {}

  int64_t in_features() const { return weight_->matrix.cols(); }
  int64_t out_features() const { return weight_->matrix.rows(); }

  /// Room for the low-rank activations [T, R] that backward needs, from the arena; undefined without
  /// adapters.
  at::Tensor take_low(Pass& pass, int64_t rows) const;
  /// low_TR (=) alone, for recomputation where y is not needed.
  void forward_low(Pass& pass, const at::Tensor& x_TK, at::Tensor& low_TR) const;
  /// y_TN (=), filling low_TR; where there is one, plus_TN is added at the end.
  struct Output {
    const Linear& linear;
    at::Tensor& low_TR;
    at::Tensor& y_TN;
    at::Tensor plus_TN = {};
  };
  /// Of one or several linears with the same input.
  static void forward(Pass& pass, const at::Tensor& x_TK, std::initializer_list<Output> outputs);

  /// Gradients of weight, bias and adapters (+=), and dx_TK (= or += by `accumulate`) unless dx is undefined.
  void backward(Pass& pass, const at::Tensor& dy_TN, const at::Tensor& x_TK, const at::Tensor& low_TR,
                at::Tensor* dx_TK, bool accumulate) const;

 private:
  Parameter* weight_;
  Parameter* bias_;
  int64_t module_;
};

}  // namespace twinkle::nn
