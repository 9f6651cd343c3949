#include "src/core/dispatch.h"

namespace intarsia {

Status NotBuilt(std::string_view what, DType got, std::span<const DType> built) {
  std::string names;
  for (DType dtype : built) names += Text(" ", Name(dtype));
  return Unimplemented(Text(what, " has dtype ", Name(got), "; built are", names));
}

Status NotBuilt(std::string_view what, int64_t got, std::span<const int> built) {
  return Unimplemented(Text(what, " is ", got, "; built are values up to ", int64_t{built.back()}));
}

}  // namespace intarsia
