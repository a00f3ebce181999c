// SPDX-License-Identifier: Apache-2.0
// Names and bounds of the rules a merge follows.
#include <array>
#include <cmath>

#include "yeto/base/format.h"
#include "yeto/merge/merge.h"

namespace yeto::merge {
namespace {

// Indexed by the enumerators.
constexpr std::array<std::string_view, 3> kWeightRules{"tokens2", "tokens", "equal"};
constexpr std::array<std::string_view, 4> kOuterKinds{"nesterov", "sgd", "direct", "auto"};
constexpr std::array<std::string_view, 2> kCorrections{"none", "heloco"};

template <class Enum, std::size_t kCount>
std::string_view name_of(const std::array<std::string_view, kCount>& names, Enum value) {
  const auto index = static_cast<std::size_t>(value);
  YETO_CHECK(index < kCount, "not one of the enumerators");
  return names[index];
}

template <class Enum, std::size_t kCount>
Result<Enum> from_name(const std::array<std::string_view, kCount>& names, std::string_view name,
                       std::string_view what) {
  std::string all;
  for (std::size_t i = 0; i < kCount; ++i) {
    if (names[i] == name) {
      return static_cast<Enum>(i);
    }
    all += strf("{}{}", i == 0 ? "" : ", ", names[i]);
  }
  return fail(ErrorCode::kType, strf("no {} is called {}", what, name), std::string(what),
              strf("use one of {}", all));
}

}  // namespace

std::string_view weight_rule_name(WeightRule rule) { return name_of(kWeightRules, rule); }

Result<WeightRule> weight_rule_from_name(std::string_view name) {
  return from_name<WeightRule>(kWeightRules, name, "weight rule");
}

std::string_view outer_kind_name(OuterKind kind) { return name_of(kOuterKinds, kind); }

Result<OuterKind> outer_kind_from_name(std::string_view name) {
  return from_name<OuterKind>(kOuterKinds, name, "outer optimizer");
}

std::string_view correction_name(Correction correction) {
  return name_of(kCorrections, correction);
}

Result<Correction> correction_from_name(std::string_view name) {
  return from_name<Correction>(kCorrections, name, "correction of deltas");
}

OuterRule OuterRule::of(OuterKind kind) {
  switch (kind) {
    case OuterKind::kNesterov:
      return {kind, 0.7F, 0.9F};
    case OuterKind::kAuto:
      return {kind, 1.0F, 0.9F};
    case OuterKind::kSgd:
      return {kind, 0.28F, 0.0F};
    case OuterKind::kDirect:
      return {kind, 1.0F, 0.0F};
  }
  YETO_CHECK(false, "an OuterKind is not one of its enumerators");
}

Status OuterRule::check() const {
  if (!(lr > 0.0F && lr <= 10.0F)) {
    return fail(ErrorCode::kRange, strf("the outer learning rate {} is not in (0, 10]", lr),
                "outer optimizer");
  }
  if (!(momentum >= 0.0F && momentum < 1.0F)) {
    return fail(ErrorCode::kRange, strf("the outer momentum {} is not in [0, 1)", momentum),
                "outer optimizer");
  }
  if (kind == OuterKind::kDirect && lr != 1.0F) {
    return fail(ErrorCode::kConflict, "the outer rule direct has the learning rate 1",
                "outer optimizer", "use sgd for another learning rate");
  }
  return Unit{};
}

}  // namespace yeto::merge
