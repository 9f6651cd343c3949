// Hopper's attention in the emulator: fewer of the cases that tests/cuda/attention_sm90_check.cu
// has on a GPU. Arguments: "[part parts [cases per d [name]]]". Of `parts` processes, each checks
// some of the element types; with `name` it names each case before it runs.
#include <cstdlib>
#include <string_view>

#include "tests/cuda/attention_sm90_cases.cuh"

int main(int argc, char** argv) {
  const auto number = [&](int i, int otherwise) {
    return argc > i ? std::atoi(argv[i]) : otherwise;
  };
  intarsia::attention::names_cases = argc > 4 && std::string_view(argv[4]) == "name";
  return intarsia::attention::CheckAll(number(3, 1), number(1, 0), number(2, 1)) ? 0 : 1;
}
