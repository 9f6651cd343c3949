// The bridge from XLA to PyTorch's dispatcher: the C interface of libintarsia_bridge.so, which
// python/intarsia/torch/_bridge_native.py mirrors. Its FFI handlers run a *plan*: one call of one
// op with everything but the tensors filled in. A program carries a plan as text (the attribute
// `plan`); Python reads the text, once in each process, and files the plan here under it.
#pragma once
#include <stdint.h>

#include "intarsia/intarsia.h"

extern "C" {

// What fills one argument of the op's schema.
enum intarsia_bridge_kind {
  INTARSIA_BRIDGE_NONE = 0,     // an optional argument that is not given
  INTARSIA_BRIDGE_OPERAND = 1,  // the next operand of the custom call
  INTARSIA_BRIDGE_MUTATED = 2,  // the next operand, whose buffer is that of result `result`
  INTARSIA_BRIDGE_FRESH = 3,    // the buffer of result `result`, whose contents the op writes
  INTARSIA_BRIDGE_BITS = 4,     // an int, double or bool in `bits`, as it lies in memory
  INTARSIA_BRIDGE_DTYPE = 5,    // a dtype, by its name `text`
  INTARSIA_BRIDGE_STRING = 6,   // `text`
  INTARSIA_BRIDGE_PYTHON = 7,   // a value that Python holds; no tensor
  INTARSIA_BRIDGE_LIST = 8,     // a list of the next `bits` arguments
};

typedef struct intarsia_bridge_argument {
  int32_t kind;
  int32_t optional;  // whether the schema says `T?`
  int32_t result;
  uint64_t bits;
  const char* text;
} intarsia_bridge_argument;

// Something that the op returns, by its schema.
typedef struct intarsia_bridge_return {
  int32_t is_list;
  int32_t count;  // of tensors, if it is a list
  int32_t more;   // whether the list may have more, which are dropped
} intarsia_bridge_return;

// What becomes of what the op returns, tensors in lists one by one: the number of the result it is
// copied into, or that it is dropped.
enum { INTARSIA_BRIDGE_DROP = -1 };

typedef struct intarsia_bridge_plan {
  const char* op;        // "aten::mm"
  const char* overload;  // "out", or ""
  int32_t python;        // whether Python calls the dispatcher, rather than torch's C function
  int32_t num_arguments, num_schema_returns, num_returns, num_results;
  const intarsia_bridge_argument* arguments;
  const intarsia_bridge_return* schema_returns;
  const int32_t* returns;
} intarsia_bridge_plan;

// Why Python is asked to call an op.
enum intarsia_bridge_reason {
  INTARSIA_BRIDGE_DISPATCH = 0,  // the plan says so
  INTARSIA_BRIDGE_CAPTURE = 1,   // the stream is being captured: memory must outlive the call
  INTARSIA_BRIDGE_EXPLAIN = 2,   // it failed, and torch's C functions do not say why: on copies
};

// A call for Python to make. It steals the tensors, which it tells by num_tensors = 0, and puts new
// handles of what is returned.
typedef struct intarsia_bridge_call {
  const char* plan;
  int32_t device;  // of CUDA; -1: the CPU
  int32_t reason;
  int32_t num_tensors, num_returned;
  void** tensors;    // a handle for each operand or fresh buffer, in the schema's order
  void** returned;   // a handle for each tensor returned; null where undefined
  char error[4096];  // why it failed
} intarsia_bridge_call;

// Both return 0, or not 0 with a text in `error`. `read` files the plan by intarsia_bridge_add.
typedef int32_t (*intarsia_bridge_read)(const char* plan, char* error, int32_t error_bytes);
typedef int32_t (*intarsia_bridge_run)(intarsia_bridge_call* call);

// Finds torch's functions, which must be loaded. Returns null, or why the bridge cannot work.
INTARSIA_API const char* intarsia_bridge_open(intarsia_bridge_read read, intarsia_bridge_run run);
// Whether torch's C functions of this version pass strings and lists (from 2.10).
INTARSIA_API int32_t intarsia_bridge_passes_strings(void);
INTARSIA_API int32_t intarsia_bridge_passes_lists(void);
// Whether torch has tensors of a dtype that XLA has too, by torch's name of it.
INTARSIA_API int32_t intarsia_bridge_has_dtype(const char* name);
// Files a plan under its text. Returns null, or what is wrong with it (until the thread's next
// call).
INTARSIA_API const char* intarsia_bridge_add(const char* text, const intarsia_bridge_plan* plan);
INTARSIA_API const intarsia_handler* intarsia_bridge_handlers(size_t* count);
}
