// Hopper's attention in the emulator: fewer of the cases that tests/cuda/attention_sm90_check.cu
// has on a GPU. Arguments: "[cases per d] [name]"; with `name`, each case is named before it runs.
#include <cstdlib>
#include <string_view>

#include "tests/cuda/attention_sm90_cases.cuh"

int main(int argc, char** argv) {
  intarsia::attention::names_cases = argc > 2 && std::string_view(argv[2]) == "name";
  return intarsia::attention::CheckAll(argc > 1 ? std::atoi(argv[1]) : 1) ? 0 : 1;
}
