// The ops as JSON, for every front end and for the documentation.
#pragma once
#include <string>

namespace intarsia {

std::string Manifest();

}  // namespace intarsia
