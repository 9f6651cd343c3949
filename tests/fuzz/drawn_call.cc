#include "tests/fuzz/drawn_call.h"

#include <algorithm>

#include "src/ops/registry.h"
#include "tests/ffi/example_calls.h"

namespace intarsia::fuzz {
namespace {

int RankOf(const intarsia_tensor& tensor) {
  return std::clamp<int>(tensor.rank, 0, INTARSIA_MAX_RANK);
}

class Drawer {
 public:
  Drawer(Bytes& bytes, bool dense) : bytes_(bytes), dense_(dense) {}

  DrawnCall Draw() {
    std::span<const OpInfo> ops = Ops();
    const OpInfo& op = ops[bytes_.Below(ops.size())];
    call_.op = &op;
    Base(op);
    for (int edits = 0; !bytes_.empty() && edits < 12; ++edits) Edit();
    return std::move(call_);
  }

 private:
  void Base(const OpInfo& op) {
    constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
    stub::Sizes sizes = stub::SmallSizes();
    for (const auto& [letter, size] : {std::pair("d", 8),
                                       {"dv", 8},
                                       {"head_size", 8},
                                       {"h", 2},
                                       {"num_heads", 2},
                                       {"hk", 1},
                                       {"heads", 4},
                                       {"p", 5},
                                       {"s", 3},
                                       {"m", 3},
                                       {"t", 4},
                                       {"tq", 4},
                                       {"tk", 5}})
      sizes[letter] = size;  // smaller: a kernel is to take microseconds
    const size_t head = bytes_.Byte();
    for (size_t i = 0; i < head / 64; ++i) {
      const size_t letter = bytes_.Below(static_cast<size_t>(op.symbols.size()));
      if (op.symbols.size() > 0) sizes[op.symbols.name(static_cast<int>(letter))] = bytes_.Size();
    }
    const stub::ExampleMaker maker(op, kTypes[head % 3], std::move(sizes), Lead(head % 64));
    const uint8_t flags = bytes_.Byte();
    const size_t given = size_t{bytes_.Byte()} | size_t{bytes_.Byte()} << 8;
    const stub::Example example =
        maker.Make({.given = given,
                    .choice = (flags >> 1) % maker.MostChoices(),
                    .variant = static_cast<size_t>(flags >> 5 & 1),
                    .types = static_cast<size_t>(flags >> 6) % maker.MostTypes(),
                    .flags = (flags & 1) != 0});
    for (size_t i = 0; i < op.operands.size(); ++i) Operand(example.call.operands[i]);
    for (size_t i = 0; i < op.attributes.size(); ++i)
      Attribute(op.attributes[i], example.call.attributes[i]);
  }

  // The sizes of "...". Most inputs spend no byte on them.
  std::vector<int64_t> Lead(size_t choice) {
    if (choice < 48) return {2, 3};
    std::vector<int64_t> sizes(bytes_.Below(4));
    for (int64_t& size : sizes) size = bytes_.Byte() % 8 ? bytes_.Byte() % 5 : bytes_.Size();
    return sizes;
  }

  void Operand(const Optional& view) {
    DrawnTensor& drawn = call_.operands.emplace_back();
    drawn.tensor.dtype = INTARSIA_NONE;
    if (!view) return;
    drawn.tensor.dtype = static_cast<int32_t>(view->dtype);
    drawn.tensor.rank = view->rank;
    std::copy_n(view->dims.begin(), view->rank, drawn.tensor.dims);
    std::copy_n(view->strides.begin(), view->rank, drawn.tensor.strides);
  }

  void Attribute(const AttributeInfo& info, const AttrValue& value) {
    if (std::holds_alternative<std::monostate>(value)) return;
    DrawnAttribute& drawn = call_.attributes.emplace_back();
    drawn.name = std::string(info.name);
    drawn.type = static_cast<int32_t>(info.type);
    if (const auto* b = std::get_if<bool>(&value)) drawn.i64 = *b;
    if (const auto* i = std::get_if<int64_t>(&value)) drawn.i64 = *i;
    if (const auto* d = std::get_if<double>(&value)) drawn.f64 = *d;
    if (const auto* s = std::get_if<std::string_view>(&value)) drawn.text = std::string(*s);
  }

  void Edit() {
    const uint8_t kind = bytes_.Byte() % 16;
    if (kind < 11) {
      if (call_.operands.empty()) return;
      DrawnTensor& drawn = call_.operands[bytes_.Below(call_.operands.size())];
      EditOperand(kind, drawn);
    } else if (kind < 13) {
      EditAttribute();
    } else {
      EditCall();
    }
  }

  void EditOperand(uint8_t kind, DrawnTensor& drawn) {
    intarsia_tensor& tensor = drawn.tensor;
    const auto rank = static_cast<size_t>(RankOf(tensor));
    if (kind < 4) {  // what the memory holds
      drawn.fill = bytes_.Byte();
      drawn.seed = bytes_.Byte();
    } else if (kind == 4) {
      if (rank > 0) tensor.dims[bytes_.Below(rank)] = bytes_.Size();
    } else if (kind == 5) {
      const size_t axis = bytes_.Below(INTARSIA_MAX_RANK);
      __builtin_add_overflow(tensor.dims[axis], bytes_.Byte() & 1 ? 1 : -1, &tensor.dims[axis]);
    } else if (kind == 6) {
      tensor.dtype = static_cast<int32_t>(bytes_.Below(14)) - 2;
    } else if (kind == 7) {
      tensor.rank = static_cast<int32_t>(bytes_.Below(11)) - 1;
    } else if (kind == 8) {
      drawn.at_front = !drawn.at_front;
      drawn.null = bytes_.Below(8) == 1;
      return;  // the layout stays
    } else {
      if (!dense_) Stride(tensor, rank);
      return;
    }
    if (!tensor.strided) Dense(tensor);
  }

  static void Dense(intarsia_tensor& tensor) {
    uint64_t stride = 1;
    for (int i = RankOf(tensor); i-- > 0;) {
      tensor.strides[i] = static_cast<int64_t>(stride);
      stride *= static_cast<uint64_t>(tensor.dims[i]);
    }
  }

  // Rows apart, axes in another order, one element for all, backwards, or anything.
  void Stride(intarsia_tensor& tensor, size_t rank) {
    tensor.strided = 1;
    if (rank == 0) return;
    const size_t axis = bytes_.Below(rank);
    switch (bytes_.Below(6)) {
      case 0: {  // a part of an array whose `axis` is longer
        uint64_t stride = static_cast<uint64_t>(tensor.strides[axis]) *
                          (static_cast<uint64_t>(tensor.dims[axis]) + bytes_.Below(9));
        for (size_t i = axis; i-- > 0; stride *= static_cast<uint64_t>(tensor.dims[i]))
          tensor.strides[i] = static_cast<int64_t>(stride);
        break;
      }
      case 1:
        std::swap(tensor.strides[axis], tensor.strides[bytes_.Below(rank)]);
        break;
      case 2:
        tensor.strides[axis] = 0;
        break;
      case 3:
        tensor.strides[axis] = static_cast<int64_t>(-static_cast<uint64_t>(tensor.strides[axis]));
        break;
      case 4:
        tensor.strides[axis] = bytes_.Size();
        break;
      default:
        tensor.dims[axis] = 1;
        tensor.strides[axis] = bytes_.Size();
    }
  }

  void EditAttribute() {
    const uint8_t kind = bytes_.Byte() % 8;
    if (kind < 6 && !call_.op->attributes.empty()) {  // another value
      const AttributeInfo& info = call_.op->attributes[bytes_.Below(call_.op->attributes.size())];
      auto found = std::ranges::find_if(call_.attributes,
                                        [&](const auto& a) { return a.name == info.name; });
      if (found == call_.attributes.end()) {
        DrawnAttribute& drawn = call_.attributes.emplace_back();
        drawn.name = std::string(info.name);
        drawn.type = static_cast<int32_t>(info.type);
        found = call_.attributes.end() - 1;
      }
      if (info.type == AttrType::kF32) found->f64 = bytes_.Number();
      if (info.type == AttrType::kI64) found->i64 = bytes_.Size();
      if (info.type == AttrType::kBool) found->i64 = bytes_.Byte() & 1;
      if (info.type == AttrType::kString) found->text = AText(info);
      return;
    }
    call_.only_c_door = true;
    if (call_.attributes.empty()) {
      call_.attributes.emplace_back().name = "no_such";
      return;
    }
    DrawnAttribute& drawn = call_.attributes[bytes_.Below(call_.attributes.size())];
    switch (bytes_.Below(6)) {
      case 0:
        drawn.type = static_cast<int32_t>(bytes_.Below(7)) - 1;
        break;
      case 1:
        drawn.name = bytes_.Text(6);
        break;
      case 2:
        drawn.name.reset();
        break;
      case 3:
        drawn.text.reset();
        break;
      case 4:
        call_.attributes.push_back(DrawnAttribute(drawn));  // twice
        break;
      default:
        call_.attributes.erase(call_.attributes.begin() + (&drawn - call_.attributes.data()));
    }
  }

  std::string AText(const AttributeInfo& info) {
    if (info.or_cache_axes && bytes_.Byte() % 4 == 1) {  // axes in an order of its own
      constexpr const char* kAxes[] = {"p", "s", "hk", "d", "2", "2*hk", "2*d", "l", "x", ""};
      std::string text;
      for (size_t n = bytes_.Below(8); n > 0; --n)
        text += std::string(text.empty() ? "" : " ") + kAxes[bytes_.Below(10)];
      return text;
    }
    if (info.one_of.empty() || bytes_.Byte() % 8 == 1) return bytes_.Text(12);
    std::string_view rest = info.one_of;
    for (size_t n = bytes_.Below(stub::ExampleMaker::CountWords(info.one_of)); n > 0; --n)
      rest.remove_prefix(rest.find('|') + 1);
    return std::string(rest.substr(0, rest.find('|')));
  }

  void EditCall() {
    switch (bytes_.Below(6)) {
      case 0:
        if (!call_.operands.empty()) call_.operands.pop_back();
        break;
      case 1:
        if (call_.operands.size() < INTARSIA_MAX_OPERANDS) call_.operands.emplace_back();
        call_.only_c_door = true;
        break;
      case 2:
        call_.in_place = !call_.in_place;
        break;
      case 3:
        call_.over = bytes_.Below(call_.operands.size());
        break;
      case 4:
        call_.workspaces.push_back({bytes_.Size(), bytes_.Size()});
        break;
      default:
        call_.platform = bytes_.Byte() & 1 ? "CUDA" : bytes_.Text(5);
    }
  }

  Bytes& bytes_;
  bool dense_;
  DrawnCall call_;
};

}  // namespace

bool IsCheap(const DrawnCall& call) {
  int64_t most = 1, longest = 1, pages = 1;
  for (size_t i = 0; i < call.operands.size() && i < call.op->operands.size(); ++i) {
    const intarsia_tensor& tensor = call.operands[i].tensor;
    if (tensor.dtype == INTARSIA_NONE || !ExtentOf(tensor)) continue;
    if (call.op->operands[i].name == "block_table" && tensor.rank == 2)
      pages = std::max<int64_t>(pages, tensor.dims[1]);
    if (IsIndex(tensor) || Elements(tensor) == 0) continue;
    most = std::max(most, Elements(tensor));
    for (int axis = 0; axis < tensor.rank; ++axis) longest = std::max(longest, tensor.dims[axis]);
  }
  return most * longest < (int64_t{1} << 22) / pages;
}

DrawnCall Draw(Bytes& bytes, bool dense) { return Drawer(bytes, dense).Draw(); }

std::string DrawnCall::Describe() const {
  std::string text = Text(op->name, " on ", platform, in_place ? ", in place" : "");
  if (over) text += Text(", result over operand ", static_cast<int64_t>(*over));
  for (size_t i = 0; i < operands.size(); ++i) {
    const intarsia_tensor& t = operands[i].tensor;
    if (t.dtype == INTARSIA_NONE) continue;
    const auto rank = static_cast<size_t>(RankOf(t));
    text += Text("\n  ", i < op->operands.size() ? op->operands[i].name : "one more", ": dtype ",
                 int64_t{t.dtype}, ", rank ", int64_t{t.rank}, " ", ShapeText({t.dims, rank}),
                 t.strided ? " strides " : "", t.strided ? ShapeText({t.strides, rank}) : "",
                 operands[i].null ? " null" : "", " fill ", int64_t{operands[i].fill}, " seed ",
                 static_cast<int64_t>(operands[i].seed));
  }
  for (const DrawnAttribute& a : attributes)
    text += Text("\n  ", a.name.value_or("null"), " (", int64_t{a.type}, ") = ", a.i64, " ",
                 std::to_string(a.f64), " \"", a.text.value_or("null"), "\"");
  for (const auto& dims : workspaces) text += Text("\n  workspace ", ShapeText(dims));
  return text;
}

}  // namespace intarsia::fuzz
