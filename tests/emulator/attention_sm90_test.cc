// Hopper's attention in the emulator: fewer of the cases that tests/cuda/attention_sm90_check.cu
// has on a GPU. Arguments: "[types [cases per d [name]]]", where `bf16` stands for all whose
// queries are, and with `name` each case is named before it runs.
#include <cstdlib>
#include <string_view>

#include "tests/cuda/attention_sm90_cases.cuh"

int main(int argc, char** argv) {
  intarsia::attention::names_cases = argc > 3 && std::string_view(argv[3]) == "name";
  const int cases_per_dim = argc > 2 ? std::atoi(argv[2]) : 1;
  return intarsia::attention::CheckAll(cases_per_dim, argc > 1 ? argv[1] : "") ? 0 : 1;
}
