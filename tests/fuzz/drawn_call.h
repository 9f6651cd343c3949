// A call drawn from a fuzzer's input: an example of tests/ffi/example_calls.h, then edits of it.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "intarsia/intarsia.h"
#include "src/core/op_info.h"
#include "tests/fuzz/arena.h"
#include "tests/fuzz/bytes.h"

namespace intarsia::fuzz {

struct DrawnTensor {
  intarsia_tensor tensor{};  // data is null until Place()
  bool at_front = false;     // where its memory lies in its slot
  uint8_t fill = 0;          // what the memory holds
  uint64_t seed = 0;
  bool null = false;  // data is to be null
};

struct DrawnAttribute {
  std::optional<std::string> name;
  int32_t type = 0;
  int64_t i64 = 0;
  double f64 = 0;
  std::optional<std::string> text;
};

struct DrawnCall {
  const OpInfo* op = nullptr;
  std::vector<DrawnTensor> operands;
  std::vector<DrawnAttribute> attributes;
  std::string platform = "Host";
  bool in_place = false;                         // results that mutate an operand take its memory
  bool only_c_door = false;                      // an XLA frame cannot say it, or says it otherwise
  std::optional<size_t> over;                    // a result to be laid over this operand
  std::vector<std::vector<int64_t>> workspaces;  // other sizes of them

  std::string Describe() const;
};

// The bytes of a tensor's memory and where its first element lies in them; none if that is more
// than kMostBytes, or its sizes make no sense.
struct Extent {
  size_t bytes = 0, first = 0;
};
std::optional<Extent> ExtentOf(const intarsia_tensor& tensor);

int64_t Elements(const intarsia_tensor& tensor);  // if ExtentOf() has a value
bool IsIndex(const intarsia_tensor& tensor);

// What the memory of an operand holds at first.
void FillMemory(const DrawnTensor& drawn, std::vector<unsigned char>& memory);
// The bytes of a strided tensor that are part of an element; empty if all are.
std::vector<bool> MaskOf(const intarsia_tensor& tensor, const Extent& extent);

// Whether the kernel's work is small enough for a fuzzer: seconds say nothing that microseconds
// do not.
bool IsCheap(const DrawnCall& call);

DrawnCall Draw(Bytes& bytes, bool dense);

}  // namespace intarsia::fuzz
