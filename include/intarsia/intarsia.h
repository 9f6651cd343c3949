/* Intarsia: LLM-inference kernels that live inside XLA programs. The one public header.
 *
 * Everything above the library goes through it: XLA front ends register the handlers of
 * intarsia_handlers() and take result shapes from intarsia_infer(); whoever has tensors of their
 * own runs an op by intarsia_call(). The manifest says what ops there are.
 *
 * Functions that can fail return 0 or an error code (those of absl, gRPC and XLA: 3 invalid
 * argument, 12 unimplemented, 13 internal); intarsia_error() then has the text. All functions are
 * thread-safe. Nothing here throws, aborts, or keeps a pointer that it was given. A pointer may be
 * null where its count is 0; elsewhere null is an error. What a pointer points to is trusted: a
 * tensor's data must be as large as its sizes and strides say, of a device that the platform can
 * read. A process may fork: calls work in the child, whatever other threads were doing.
 */
#ifndef INTARSIA_INTARSIA_H_
#define INTARSIA_INTARSIA_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define INTARSIA_API __attribute__((visibility("default")))

/* Raised when a struct below or the meaning of a function changes. */
enum { INTARSIA_ABI_VERSION = 1 };
INTARSIA_API int32_t intarsia_abi_version(void);
INTARSIA_API const char* intarsia_version(void); /* "0.1.0" */

/* What went wrong last on this thread: "rms_norm: weight has n=5 but x has n=64". Empty after a
 * call that succeeds; valid until the thread's next call. */
INTARSIA_API const char* intarsia_error(void);

/* The ops as JSON: operands, attributes with defaults, results, dims, dtypes, aliases, docs; and
 * what the library was built with. */
INTARSIA_API const char* intarsia_manifest(void);

/* The GPUs that CUDA shows, as the library sees them (INTARSIA_ARCH may hold them back), and which
 * kernels each gets, as JSON: [] without a GPU or without CUDA. A GPU that cannot run this build
 * has an "error". Loads the kernels on every GPU. Valid until the thread's next call. */
INTARSIA_API int32_t intarsia_devices(const char** json);

/* A typed XLA FFI handler (xla/ffi/api/c_api.h: XLA_FFI_Handler*). Register `execute`, and
 * `initialize` where it is not null, under `target` for `platform`. */
typedef struct {
  const char* target;   /* "intarsia.rms_norm" */
  const char* platform; /* "Host" or "CUDA" */
  void* initialize;
  void* execute;
} intarsia_handler;
INTARSIA_API const intarsia_handler* intarsia_handlers(size_t* count); /* count may be null */

typedef enum {
  INTARSIA_F32,
  INTARSIA_F16,
  INTARSIA_BF16,
  INTARSIA_F8E4M3FN,
  INTARSIA_F8E5M2,
  INTARSIA_U8,
  INTARSIA_I8,
  INTARSIA_I32,
  INTARSIA_I64,
  INTARSIA_BOOL,
  INTARSIA_F8E8M0FNU,
  INTARSIA_NONE = -1 /* an absent tensor */
} intarsia_dtype;

enum { INTARSIA_MAX_RANK = 8, INTARSIA_MAX_OPERANDS = 20, INTARSIA_MAX_RESULTS = 6 };

typedef struct {
  void* data;
  int32_t dtype; /* an intarsia_dtype */
  int32_t rank;
  int32_t strided; /* 0: dense row-major, strides are not looked at */
  int64_t dims[INTARSIA_MAX_RANK];
  /* In elements. That of an axis of one element or less is not looked at. */
  int64_t strides[INTARSIA_MAX_RANK];
} intarsia_tensor;

typedef enum {
  INTARSIA_ATTR_BOOL = 1,
  INTARSIA_ATTR_I64,
  INTARSIA_ATTR_F32,
  INTARSIA_ATTR_STRING
} intarsia_attribute_type;

typedef struct {
  const char* name;
  int32_t type;     /* an intarsia_attribute_type */
  int64_t i64;      /* bool and i64 */
  double f64;       /* f32 */
  const char* text; /* string */
} intarsia_attribute;

/* One result, as intarsia_infer tells it. */
typedef struct {
  intarsia_tensor
      tensor;    /* data is null; dtype INTARSIA_NONE: this result does not exist in this call */
  int32_t alias; /* the operand whose buffer it shares, by spec position, or -1 */
  int32_t workspace; /* 1: for the op's own use, contents mean nothing */
} intarsia_result;

/* Checks operands (in spec order, absent ones INTARSIA_NONE, optional ones at the end left out or
 * INTARSIA_NONE; data is not looked at) and attributes,
 * and fills results[INTARSIA_MAX_RESULTS]. */
INTARSIA_API int32_t intarsia_infer(const char* op, const intarsia_tensor* operands,
                                    size_t num_operands, const intarsia_attribute* attributes,
                                    size_t num_attributes, intarsia_result* results,
                                    size_t* num_results);

/* Runs an op without XLA. `results` are in spec order, workspaces included, absent ones
 * INTARSIA_NONE. An aliased result is the operand's tensor again; one that `mutates` an operand
 * (manifest) may be. Any other result lies in memory of its own: where it overlaps an operand or
 * another result, its contents mean nothing. Overlaps are refused where they are seen, as they are
 * but for strides that take too long to tell. One of a result and an operand of its dtype, shape
 * and address is not refused: ops that compute element by element may take it. platform is "Host"
 * or "CUDA". On CUDA the call enqueues on `stream` (a cudaStream_t; null is the default stream) of
 * the current device and returns; on the Host it runs on a pool of the library's own and returns
 * when done. */
INTARSIA_API int32_t intarsia_call(const char* op, const char* platform,
                                   const intarsia_tensor* operands, size_t num_operands,
                                   const intarsia_attribute* attributes, size_t num_attributes,
                                   const intarsia_tensor* results, size_t num_results,
                                   void* stream);

/* Lets GPUs (CUDA's ordinals) reach each other's memory, as `all_reduce_fused_add_rms_norm` does
 * (docs/adr/0013-exchange.md). 12: two of them cannot, or the library was built without CUDA. */
INTARSIA_API int32_t intarsia_enable_peer_access(const int32_t* devices, size_t count);

struct PJRT_Api; /* of xla/pjrt/c/pjrt_c_api.h */

/* Registers the library's handlers with a PJRT plugin, before programs are compiled with it: those
 * for CUDA with a plugin for GPUs, those for the Host with one for CPUs. The plugin must be of PJRT
 * 0.96 (jaxlib 0.9.1) or newer. Twice is as good as once. */
INTARSIA_API int32_t intarsia_register_with_pjrt(const struct PJRT_Api* api);

/* This library is a PJRT plugin itself, for frameworks that can only be told a plugin's path: the
 * plugin that the environment variable INTARSIA_PJRT_PLUGIN names, with the handlers registered. It
 * takes the PJRT_ExecuteOptions of older callers, and its platform is called "intarsia". Never
 * null: what went wrong is the error of every function of the API. */
INTARSIA_API const struct PJRT_Api* GetPjrtApi(void);
/* Gives the op kernels in PyTorch's dispatcher, for CPU and CUDA tensors, on torch's current
 * stream. torch, 2.9 or newer, must be in the process already (import torch). `torch_name` is
 * "namespace::name" or "namespace::name.overload", whose schema the caller defines: the op's
 * operands in spec order (`Tensor`, `Tensor?` if optional), its attributes (`bool`, `int`, `float`,
 * `str`, each with `?` if it has no default), and as returns its results without workspaces. A
 * result that does not exist in a call is an empty f32 tensor. Aliased results are not returned;
 * their operands are written (`Tensor(a!)`). */
enum {
  /* The same for each result that `mutates` an operand (manifest). */
  INTARSIA_TORCH_IN_PLACE = 1,
  /* A string is an `int`, the address of a text, since torch before 2.10 cannot hand over `str`. */
  INTARSIA_TORCH_TEXT_ADDRESSES = 2
};
INTARSIA_API int32_t intarsia_register_with_torch(const char* op, const char* torch_name,
                                                  int32_t form);

#ifdef __cplusplus
}
#endif
#endif /* INTARSIA_INTARSIA_H_ */
