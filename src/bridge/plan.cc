#include "src/bridge/plan.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "src/torch/functions.h"

namespace intarsia::bridge {
namespace {

struct Hash : std::hash<std::string_view> {
  using is_transparent = void;
};

std::shared_mutex mutex;
std::unordered_map<std::string, std::unique_ptr<const Plan>, Hash, std::equal_to<>> plans;
std::atomic<intarsia_bridge_read> read_plan;
std::atomic<intarsia_bridge_run> run_call;

const Plan* Known(std::string_view text) {
  const std::shared_lock lock(mutex);
  const auto found = plans.find(text);
  return found == plans.end() ? nullptr : found->second.get();
}

std::unique_ptr<const Plan> MakePlan(const char* text, const intarsia_bridge_plan& from) {
  auto plan = std::make_unique<Plan>();
  plan->text = text;
  plan->op = from.op;
  plan->overload = from.overload;
  plan->name = Text(plan->op, plan->overload.empty() ? "" : ".", plan->overload);
  plan->python = from.python != 0;
  plan->num_results = from.num_results;
  plan->num_operands = 0;
  plan->last_result = -1;
  for (int i = 0; i < from.num_arguments; ++i) {
    const intarsia_bridge_argument& a = from.arguments[i];
    const auto kind = static_cast<intarsia_bridge_kind>(a.kind);
    plan->arguments.push_back({kind, a.optional != 0, a.result, a.bits, a.text ? a.text : ""});
    plan->last_result = std::max<int>(plan->last_result, a.result);
    plan->num_operands += kind == INTARSIA_BRIDGE_OPERAND || kind == INTARSIA_BRIDGE_MUTATED;
  }
  plan->schema_returns.assign(from.schema_returns, from.schema_returns + from.num_schema_returns);
  plan->returns.assign(from.returns, from.returns + from.num_returns);
  for (const int result : plan->returns) plan->last_result = std::max(plan->last_result, result);
  return plan;
}

}  // namespace

Status FindPlan(std::string_view text, const Plan*& plan) {
  if ((plan = Known(text)) != nullptr) return {};
  const intarsia_bridge_read read = read_plan;
  if (read == nullptr)
    return Internal("import intarsia.torch.bridge before a program that uses it");
  char error[4096] = "";
  if (read(std::string(text).c_str(), error, sizeof(error)) != 0) return InvalidArgument(error);
  if ((plan = Known(text)) != nullptr) return {};
  return Internal("a plan was read but not filed");
}

Status RunInPython(intarsia_bridge_call& call) {
  call.error[0] = 0;
  const intarsia_bridge_run run = run_call;
  if (run == nullptr) return Internal("import intarsia.torch.bridge before a program that uses it");
  return run(&call) == 0 ? Status{} : Internal(call.error);
}

}  // namespace intarsia::bridge

using namespace intarsia;

const char* intarsia_bridge_open(intarsia_bridge_read read, intarsia_bridge_run run) {
  static std::string error;
  Status status = torch::FindFunctions();
  if (!status.ok()) return (error = std::move(status.message)).c_str();
  bridge::read_plan = read;
  bridge::run_call = run;
  return nullptr;
}

int32_t intarsia_bridge_passes_strings(void) { return torch::Get().new_string != nullptr; }

int32_t intarsia_bridge_passes_lists(void) { return torch::Get().new_list != nullptr; }

int32_t intarsia_bridge_has_dtype(const char* name) { return torch::Get().DTypeNumber(name) >= 0; }

void intarsia_bridge_add(const char* text, const intarsia_bridge_plan* plan) {
  auto made = bridge::MakePlan(text, *plan);
  const std::unique_lock lock(bridge::mutex);
  bridge::plans.try_emplace(text, std::move(made));  // the first stays: others may be using it
}
