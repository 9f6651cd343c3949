// Which result of a program gets which buffer that the caller gives up.
#pragma once
#include <string>
#include <string_view>

namespace intarsia::pjrt {

// torch_xla says which parameters of a program it gives up, but not to which results, and XLA
// matches them by size in the order of their numbers: with the K and V caches of a model, all of
// one size, it may swap them, and then copies both before and after each write. Where a custom call
// says that a result shares its operand's buffer, and the operand is such a parameter, this says so
// of the program: given_up becomes input_output_alias in the HloModuleProto.
//
// Returns the module with that; empty if there is nothing to say, or it is not understood.
std::string AliasGivenUpParameters(std::string_view hlo_module);

}  // namespace intarsia::pjrt
