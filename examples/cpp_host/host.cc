// A host of the library in C++, without Python and XLA: it asks for the shapes of an op's results,
// allocates them, and runs the op on the CPU.
#include <cstdio>
#include <vector>

#include "intarsia/intarsia.h"

namespace {

intarsia_tensor Matrix(float* data, int64_t rows, int64_t columns) {
  intarsia_tensor tensor = {};
  tensor.data = data;
  tensor.dtype = INTARSIA_F32;
  tensor.rank = 2;
  tensor.dims[0] = rows;
  tensor.dims[1] = columns;
  return tensor;
}

}  // namespace

int main() {
  constexpr int64_t kRows = 2, kColumns = 8;
  std::vector<float> x(kRows * kColumns, 3.0f), weight(kColumns, 0.5f);
  // Operands in the order of the op's page; the weight is optional, and here it is given.
  intarsia_tensor operands[] = {Matrix(x.data(), kRows, kColumns), {}};
  operands[1].data = weight.data();
  operands[1].dtype = INTARSIA_F32;
  operands[1].rank = 1;
  operands[1].dims[0] = kColumns;
  intarsia_attribute eps = {};
  eps.name = "eps";
  eps.type = INTARSIA_ATTR_F32;
  eps.f64 = 1e-5;

  intarsia_result inferred[INTARSIA_MAX_RESULTS];
  size_t count = 0;
  if (intarsia_infer("rms_norm", operands, 2, &eps, 1, inferred, &count) != 0) {
    std::fprintf(stderr, "%s\n", intarsia_error());
    return 1;
  }
  // One result, as large as x. An op with workspaces has more, which are allocated alike.
  std::vector<float> out(kRows * kColumns);
  intarsia_tensor result = inferred[0].tensor;
  result.data = out.data();
  if (intarsia_call("rms_norm", "Host", operands, 2, &eps, 1, &result, count, nullptr) != 0) {
    std::fprintf(stderr, "%s\n", intarsia_error());
    return 1;
  }
  std::printf("intarsia %s: rms_norm gives %.3f\n", intarsia_version(), out[0]);

  operands[1].dims[0] = 5;  // a wrong call has a text
  if (intarsia_infer("rms_norm", operands, 2, &eps, 1, inferred, &count) == 0) return 1;
  std::printf("refused: %s\n", intarsia_error());
  return 0;
}
