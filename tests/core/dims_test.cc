// The little language of shapes: what matches, what does not, and what the message says.
#include "src/core/dims.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace intarsia {
namespace {

class Given final : public Conditions {
 public:
  Given(std::initializer_list<std::string> names = {}) : names_(names) {}
  bool Holds(std::string_view condition) const override {
    if (condition.starts_with('!')) return !Holds(condition.substr(1));
    return names_.contains(std::string(condition));
  }
  std::string_view Value(std::string_view attribute) const override {
    for (const std::string_view name : names_)
      if (name.starts_with(std::string(attribute) + "=")) return name.substr(attribute.size() + 1);
    return {};
  }

 private:
  std::set<std::string> names_;
};

// One call: operands are matched one after the other.
class Dims {
 public:
  explicit Dims(std::vector<std::string_view> texts) {
    for (const std::string_view text : texts) patterns_.emplace_back(text, symbols_);
    binding_.emplace(symbols_);
  }
  // "" if it fits.
  std::string Match(size_t i, std::vector<int64_t> shape, const Given& given = {},
                    std::string_view from = "x") {
    return binding_->Match(patterns_[i], shape, given, from).message;
  }
  std::vector<int64_t> Evaluate(size_t i, const Given& given = {}) {
    std::vector<int64_t> shape;
    const Status status = binding_->Evaluate(patterns_[i], given, shape);
    EXPECT_TRUE(status.ok()) << status.message;
    return shape;
  }
  std::string EvaluateError(size_t i) {
    std::vector<int64_t> shape;
    return binding_->Evaluate(patterns_[i], Given(), shape).message;
  }
  void Set(std::string_view name, int64_t value) {
    binding_->Set(symbols_.Intern(name), value, "attribute");
  }

 private:
  SymbolTable symbols_;
  std::vector<DimsPattern> patterns_;
  std::optional<DimsBinding> binding_;
};

using Shape = std::vector<int64_t>;

TEST(Dims, LettersBindOnce) {
  Dims dims({"t n", "n", "n t"});
  EXPECT_EQ(dims.Match(0, {3, 64}), "");
  EXPECT_EQ(dims.Match(1, {64}), "");
  EXPECT_EQ(dims.Match(1, {5}, {}, "weight"), "has n=5 but x has n=64");
  EXPECT_EQ(dims.Evaluate(2), (Shape{64, 3}));
}

TEST(Dims, RankMustFit) {
  Dims dims({"t n"});
  EXPECT_EQ(dims.Match(0, {3}), "has shape [3], expected [t n]");
  EXPECT_EQ(dims.Match(0, {3, 4, 5}), "has shape [3, 4, 5], expected [t n]");
  EXPECT_EQ(dims.Match(0, {}), "has shape [], expected [t n]");
}

TEST(Dims, Scalar) {
  Dims dims({""});
  EXPECT_EQ(dims.Match(0, {}), "");
  EXPECT_EQ(dims.Match(0, {1}), "has shape [1], expected []");
  EXPECT_EQ(dims.Evaluate(0), Shape{});
}

TEST(Dims, Integers) {
  Dims dims({"1", "t 3"});
  EXPECT_EQ(dims.Match(0, {1}), "");
  EXPECT_EQ(dims.Match(0, {2}), "has size 2 where 1 is expected");
  EXPECT_EQ(dims.Match(1, {7, 3}), "");
  EXPECT_EQ(dims.Evaluate(1), (Shape{7, 3}));
}

TEST(Dims, EllipsisIsTheSameEverywhere) {
  Dims dims({"... n", "...", "... h d"});
  EXPECT_EQ(dims.Match(0, {2, 3, 8}), "");
  EXPECT_EQ(dims.Match(1, {2, 3}), "");
  EXPECT_EQ(dims.Match(1, {2, 4}), "has leading axes [2, 4] but x has [2, 3]");
  EXPECT_EQ(dims.Match(1, {2}), "has 1 leading axes but x has 2");
  EXPECT_EQ(dims.Match(2, {2, 3, 4, 5}), "");
  EXPECT_EQ(dims.Evaluate(2), (Shape{2, 3, 4, 5}));
}

TEST(Dims, EllipsisMayBeEmpty) {
  Dims dims({"... n", "..."});
  EXPECT_EQ(dims.Match(0, {8}), "");
  EXPECT_EQ(dims.Evaluate(1), Shape{});
  EXPECT_EQ(dims.Match(0, {1, 8}), "has 1 leading axes but x has 0");
}

TEST(Dims, IntegersChooseBehindAnEllipsis) {
  for (const Shape& scale : {Shape{1}, Shape{8}, Shape{2, 3, 1}, Shape{2, 3, 4}}) {
    Dims dims({"... n", "1 | n | ... 1 | ... g", "g"});
    EXPECT_EQ(dims.Match(0, {2, 3, 8}), "");
    EXPECT_EQ(dims.Match(1, scale), "");
    if (scale.back() == 4) {
      EXPECT_EQ(dims.Evaluate(2), (Shape{4}));
    }
  }
  Dims dims({"... n", "1 | n | ... 1 | ... g"});
  EXPECT_EQ(dims.Match(0, {2, 3, 8}), "");
  EXPECT_EQ(dims.Match(1, {7}, {}, "scale"), "has n=7 but x has n=8");
  EXPECT_EQ(dims.Match(1, {2, 1, 1}), "has leading axes [2, 1] but x has [2, 3]");
  EXPECT_EQ(dims.Match(1, {3, 1}), "has shape [3, 1], expected [1] or [n] or [... 1] or [... g]");
}

TEST(Dims, Multiples) {
  Dims dims({"2*n", "n", "2*hk d", "hk"});
  EXPECT_EQ(dims.Match(0, {7}), "has 2*n=7, expected a multiple of 2");
  EXPECT_EQ(dims.Match(0, {8}), "");
  EXPECT_EQ(dims.Evaluate(1), (Shape{4}));
  EXPECT_EQ(dims.Match(0, {10}, {}, "y"), "has 2*n=10 but x has n=4, expected 8");
  EXPECT_EQ(dims.Match(2, {6, 5}), "");
  EXPECT_EQ(dims.Match(3, {4}, {}, "z"), "has hk=4 but x has hk=3");
}

TEST(Dims, AttributesAsSizes) {
  Dims dims({"h*head_size", "h"});
  dims.Set("head_size", 64);
  EXPECT_EQ(dims.Match(0, {100}), "has h*head_size=100, expected a multiple of 64");
  EXPECT_EQ(dims.Match(0, {256}), "");
  EXPECT_EQ(dims.Evaluate(1), (Shape{4}));
  EXPECT_EQ(dims.Match(0, {128}, {}, "y"),
            "has h*head_size=128 but x has h=4 and attribute has head_size=64, expected 256");
}

TEST(Dims, AttributesThatAreNoSizes) {
  for (const int64_t size : {int64_t{0}, int64_t{-1}, int64_t{-64}, INT64_MIN}) {
    Dims dims({"h*head_size", "h"});
    dims.Set("head_size", size);
    EXPECT_NE(dims.Match(0, {128}), "") << size;
  }
}

TEST(Dims, Quotients) {
  Dims dims({"t n", "t n/group"});
  dims.Set("group", 128);
  EXPECT_EQ(dims.Match(0, {3, 512}), "");
  EXPECT_EQ(dims.Match(1, {3, 4}), "");
  EXPECT_EQ(dims.Match(1, {3, 5}, {}, "scale"), "has n/group=5 but x has n=512");
  EXPECT_EQ(dims.Evaluate(1), (Shape{3, 4}));
}

TEST(Dims, QuotientsThatDoNotDivide) {
  Dims dims({"n", "n/group"});
  dims.Set("group", 100);
  EXPECT_EQ(dims.Match(0, {512}), "");
  EXPECT_EQ(dims.EvaluateError(1), "has n/group with group=100, which does not divide 512");
  dims.Set("group", 0);
  EXPECT_NE(dims.EvaluateError(1), "");
}

TEST(Dims, OneMore) {
  Dims dims({"b+1", "b"});
  EXPECT_EQ(dims.Match(0, {0}), "has b+1=0, expected at least 1");
  EXPECT_EQ(dims.Match(0, {5}), "");
  EXPECT_EQ(dims.Match(1, {5}, {}, "lens"), "has b=5 but x has b=4");
  EXPECT_EQ(dims.Match(0, {6}, {}, "other"), "has b+1=6 but x has b=4, expected 5");
}

TEST(Dims, VariantsByCondition) {
  Dims dims({"up: ... n | ... 2*n", "n"});
  EXPECT_EQ(dims.Match(0, {3, 8}, {"up"}), "");
  EXPECT_EQ(dims.Evaluate(1), (Shape{8}));
  Dims halves({"up: ... n | ... 2*n", "n"});
  EXPECT_EQ(halves.Match(0, {3, 8}), "");
  EXPECT_EQ(halves.Evaluate(1), (Shape{4}));
}

TEST(Dims, VariantsByRank) {
  Dims dims({"...", "... h d | flat: ... h*d"});
  dims.Set("d", 4);
  EXPECT_EQ(dims.Match(0, {5}), "");
  EXPECT_EQ(dims.Match(1, {5, 2, 4}, {"flat"}), "");
  EXPECT_EQ(dims.Match(1, {5, 8}, {"flat"}), "");
  EXPECT_EQ(dims.Match(1, {5, 8}), "has shape [5, 8], expected [... h d], or [... h*d] with flat");
  EXPECT_EQ(dims.Match(1, {8}, {"flat"}), "has shape [8], expected [... h d] or [... h*d]");
}

TEST(Dims, VariantsByWhatIsAbsent) {
  Dims dims({"paged: p s | t", "a"});
  EXPECT_EQ(dims.Match(0, {9}, {"paged"}), "");  // the second is for every call
  Dims strict({"paged: p s | !paged: t"});
  EXPECT_EQ(strict.Match(0, {9}), "");
  EXPECT_EQ(strict.Match(0, {9}, {"paged"}), "has shape [9], expected [p s]");
}

TEST(Dims, SeveralConditions) {
  Dims dims({"paged: layout=NHD: p s | paged: layout=other: s p | t"});
  EXPECT_EQ(dims.Match(0, {2, 3}, {"paged", "layout=NHD"}), "");
  EXPECT_EQ(dims.Match(0, {3, 2}, {"paged", "layout=other"}), "");
  EXPECT_EQ(dims.Match(0, {2, 3}, {"layout=NHD"}), "has shape [2, 3], expected [t]");
  EXPECT_EQ(dims.Match(0, {9}, {"layout=NHD"}), "");
}

TEST(Dims, ConditionalAxes) {
  Dims dims({"layer?l p s", "l"});
  EXPECT_EQ(dims.Match(0, {4, 5}), "");
  EXPECT_EQ(dims.Match(0, {3, 4, 5}), "has shape [3, 4, 5], expected [p s]");
  EXPECT_EQ(dims.Match(0, {4, 5}, {"layer"}), "has shape [4, 5], expected [l p s]");
  EXPECT_EQ(dims.Match(0, {3, 4, 5}, {"layer"}), "");
  EXPECT_EQ(dims.Evaluate(1), (Shape{3}));
  EXPECT_EQ(dims.Evaluate(0, {"layer"}), (Shape{3, 4, 5}));
}

TEST(Dims, CacheLayouts) {
  Dims dims({"t hk d", "@key_cache", "@value_cache"});
  EXPECT_EQ(dims.Match(0, {7, 3, 16}), "");
  EXPECT_EQ(dims.Match(1, {6, 4, 3, 16}, {"layout=NHD"}), "");
  EXPECT_EQ(dims.Match(2, {6, 4, 3, 16}, {"layout=NHD"}), "");
  EXPECT_EQ(dims.Match(1, {2, 6, 4, 6, 16}, {"layout=combined", "layer"}), "");
  EXPECT_EQ(dims.Match(1, {6, 4, 8, 16}, {"layout=combined"}),
            "has 2*hk=8 but x has hk=3, expected 6 where layout=combined");
  EXPECT_EQ(dims.Match(1, {6, 3, 4, 16}, {"layout=HND"}), "");
  EXPECT_EQ(dims.Match(1, {6, 4, 3, 32}, {"layout=packed"}), "");
  EXPECT_EQ(dims.Match(1, {6, 4, 3, 24}, {"layout=packed"}),
            "has 2*d=24 but x has d=16, expected 32 where layout=packed");
  EXPECT_EQ(dims.Match(1, {2, 2, 6, 4, 3, 16}, {"layout=stacked", "layer"}), "");
  EXPECT_EQ(dims.Match(1, {3, 6, 4, 3, 16}, {"layout=stacked"}),
            "has shape [3, 6, 4, 3, 16], expected [2 p s hk d]");
  EXPECT_EQ(dims.Match(2, {6, 4, 3, 32}, {"layout=packed"}),
            "is given, but must be absent in such a call");
}

TEST(Dims, AnOrderOfAxesThatTheCallSpells) {
  Dims dims({"t hk d", "x: @key_cache | !x: n", "@value_cache"});
  EXPECT_EQ(dims.Match(0, {7, 3, 16}), "");
  // FlashInfer's two orders, and one with the layers behind the pages.
  EXPECT_EQ(dims.Match(1, {6, 2, 3, 4, 16}, {"x", "layout=p 2 hk s d"}), "");
  EXPECT_EQ(dims.Match(1, {6, 2, 4, 3, 16}, {"x", "layout=p 2 s hk d"}), "");
  EXPECT_EQ(dims.Match(1, {6, 5, 4, 3, 16}, {"x", "layout=p l s hk d", "layer"}), "");
  EXPECT_EQ(dims.Match(2, {6, 5, 4, 3, 16}, {"x", "layout=p l s hk d", "layer"}), "");
  EXPECT_EQ(dims.Match(2, {5, 3, 6, 4, 16}, {"layout=hk p s d", "layer"}), "");
  EXPECT_EQ(dims.Match(1, {6, 4, 4, 16}, {"x", "layout=p hk s d"}), "has hk=4 but x has hk=3");
  EXPECT_EQ(dims.Match(1, {3, 6, 4}, {"x", "layout=hk p s d"}),
            "has shape [3, 6, 4], expected [hk p s d]");
  EXPECT_EQ(dims.Match(1, {8}, {"layout=hk p s d"}), "");  // without x it is no cache
  EXPECT_EQ(dims.Match(2, {6, 4, 3, 16}, {"layout=p s 2*hk d"}),
            "is given, but must be absent in such a call");
  EXPECT_EQ(dims.Evaluate(2, {"layout=hk p s d"}), (Shape{3, 6, 4, 16}));
}

TEST(Dims, AConditionIsSaidInWords) {
  Dims dims({"t hk d", "paged: any | !paged: tk hk"});
  EXPECT_EQ(dims.Match(0, {7, 3, 16}), "");
  EXPECT_EQ(dims.Match(1, {6, 4}), "has hk=4 but x has hk=3 without paged");
  EXPECT_EQ(dims.Match(1, {6, 4, 3}), "has shape [6, 4, 3], expected [tk hk], or [any] with paged");
}

TEST(Dims, ATransposedMatrixIsToldItsForm) {
  Dims dims({"t k", "n k"});
  EXPECT_EQ(dims.Match(0, {4, 64}), "");
  EXPECT_EQ(dims.Match(1, {64, 32}, {}, "w"),
            "has k=32 but x has k=64; its shape is [64, 32], expected [n k]");
  Dims others({"t k", "n k"});
  EXPECT_EQ(others.Match(0, {4, 64}), "");
  EXPECT_EQ(others.Match(1, {48, 32}, {}, "w"), "has k=32 but x has k=64");
}

TEST(Dims, EvaluateSaysWhatIsUnknown) {
  Dims dims({"t n"});
  EXPECT_EQ(dims.EvaluateError(0), "nothing says what t is");
}

TEST(Dims, EvaluateDoesNotOverflow) {
  Dims dims({"4*n", "n"});
  EXPECT_EQ(dims.Match(1, {int64_t{1} << 62}), "");
  EXPECT_EQ(dims.EvaluateError(0), "has a size above 2^63");
}

TEST(Dims, MatchDoesNotOverflow) {
  Dims dims({"4*n", "n"});
  EXPECT_EQ(dims.Match(1, {int64_t{1} << 62}), "");
  EXPECT_NE(dims.Match(0, {0}), "");  // 4 * 2^62 is 0 in 64 bits
}

}  // namespace
}  // namespace intarsia
