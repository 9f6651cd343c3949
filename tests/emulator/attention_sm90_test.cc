// Hopper's attention in the emulator: fewer of the cases that tests/cuda/attention_sm90_check.cu
// has on a GPU. Arguments: "[part parts [cases per d [multiprocessors [name]]]]". Of `parts`
// processes, each checks some of the element types; with `name` it names each case before it runs.
#include <cstdlib>
#include <string_view>

#include "tests/cuda/attention_sm90_cases.cuh"
#include "tests/emulator/emulator.h"

int main(int argc, char** argv) {
  const auto number = [&](int i, int otherwise) {
    return argc > i ? std::atoi(argv[i]) : otherwise;
  };
  intarsia::emulator::multiprocessors = number(4, intarsia::emulator::multiprocessors);
  intarsia::attention::names_cases = argc > 5 && std::string_view(argv[5]) == "name";
  return intarsia::attention::CheckAll(number(3, 1), number(1, 0), number(2, 1)) ? 0 : 1;
}
