#include "src/bridge/plan.h"

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

bool HasText(intarsia_bridge_kind kind) {
  return kind == INTARSIA_BRIDGE_DTYPE || kind == INTARSIA_BRIDGE_STRING;
}

// Counts who writes each result, which must be one.
class Writers {
 public:
  explicit Writers(int num_results) : counts_(static_cast<size_t>(num_results)) {}

  Status Add(const char* who, int number, int result) {
    if (result < 0 || static_cast<size_t>(result) >= counts_.size())
      return InvalidArgument(Text("the plan's ", who, " ", number, " is for result ", result,
                                  ", expected 0 to ", static_cast<int64_t>(counts_.size()) - 1));
    ++counts_[static_cast<size_t>(result)];
    return {};
  }

  Status Check() const {
    for (size_t i = 0; i < counts_.size(); ++i)
      if (counts_[i] != 1)
        return InvalidArgument(Text("the plan writes result ", static_cast<int64_t>(i), " ",
                                    counts_[i], " times, expected once"));
    return {};
  }

 private:
  std::vector<int> counts_;
};

// Arguments, a list before its elements.
Status CheckArguments(const intarsia_bridge_plan& plan, Writers& writers) {
  const auto count = static_cast<uint64_t>(plan.num_arguments);
  uint64_t elements = 0;  // of lists, that must follow
  for (int i = 0; i < plan.num_arguments; ++i) {
    const intarsia_bridge_argument& a = plan.arguments[i];
    const auto kind = static_cast<intarsia_bridge_kind>(a.kind);
    if (a.kind < INTARSIA_BRIDGE_NONE || a.kind > INTARSIA_BRIDGE_LIST)
      return InvalidArgument(Text("the plan's argument ", i, " is of kind ", a.kind,
                                  ", expected 0 to ", INTARSIA_BRIDGE_LIST));
    if (HasText(kind) && a.text == nullptr)
      return InvalidArgument(Text("the plan's argument ", i, " has no text"));
    if (elements > 0) --elements;
    if (kind == INTARSIA_BRIDGE_LIST) {
      if (a.bits > count) return InvalidArgument(Text("the plan's list ", i, " has no such end"));
      elements += a.bits;
    }
    if (kind == INTARSIA_BRIDGE_MUTATED || kind == INTARSIA_BRIDGE_FRESH)
      INTARSIA_RETURN_IF_ERROR(writers.Add("argument", i, a.result));
  }
  if (elements > 0) return InvalidArgument("the plan's last list is cut short");
  return {};
}

// Whether a plan may be run: it reaches nothing outside of its arrays, and leaves no result as it
// was. Whether its arguments fit the op's schema is for Python to say, which can read the schema.
Status Check(const intarsia_bridge_plan& plan) {
  if (plan.num_arguments < 0 || plan.num_schema_returns < 0 || plan.num_returns < 0 ||
      plan.num_results < 0 ||
      plan.num_results > int64_t{plan.num_arguments} + int64_t{plan.num_returns})
    return InvalidArgument("the plan's counts do not fit each other");
  int64_t returned = 0;
  for (int i = 0; i < plan.num_schema_returns; ++i) {
    const intarsia_bridge_return& r = plan.schema_returns[i];
    if (r.count < 0) return InvalidArgument("the plan returns a list of less than nothing");
    returned += r.is_list ? r.count : 1;
  }
  if (returned != plan.num_returns)
    return InvalidArgument(
        Text("the plan says where ", plan.num_returns, " tensors go, its op returns ", returned));
  Writers writers(plan.num_results);
  INTARSIA_RETURN_IF_ERROR(CheckArguments(plan, writers));
  for (int i = 0; i < plan.num_returns; ++i)
    if (plan.returns[i] != INTARSIA_BRIDGE_DROP)
      INTARSIA_RETURN_IF_ERROR(writers.Add("return", i, plan.returns[i]));
  return writers.Check();
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
  for (int i = 0; i < from.num_arguments; ++i) {
    const intarsia_bridge_argument& a = from.arguments[i];
    const auto kind = static_cast<intarsia_bridge_kind>(a.kind);
    plan->arguments.push_back({kind, a.optional != 0, a.result, a.bits, a.text ? a.text : ""});
    plan->num_operands += kind == INTARSIA_BRIDGE_OPERAND || kind == INTARSIA_BRIDGE_MUTATED;
  }
  plan->schema_returns.assign(from.schema_returns, from.schema_returns + from.num_schema_returns);
  plan->returns.assign(from.returns, from.returns + from.num_returns);
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

const char* intarsia_bridge_add(const char* text, const intarsia_bridge_plan* plan) {
  thread_local std::string error;
  if (Status status = bridge::Check(*plan); !status.ok())
    return (error = std::move(status.message)).c_str();
  auto made = bridge::MakePlan(text, *plan);
  const std::unique_lock lock(bridge::mutex);
  bridge::plans.try_emplace(text, std::move(made));  // the first stays: others may be using it
  return nullptr;
}
