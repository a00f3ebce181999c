// SPDX-License-Identifier: Apache-2.0
// Checks of single values, and the set of values a line ends with.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "yeto/base/format.h"
#include "yeto/fleet/spec/flags.h"
#include "yeto/fleet/spec/nearest.h"

namespace yeto::fleet {
namespace {

struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;
  bool high_open = false;
  bool holds(double x) const {
    return (low_open ? x > low : x >= low) && (high_open ? x < high : x <= high);
  }
};

// Rows are checked by a test, so the text is known to be of the form "[a,b)".
Range range_of(std::string_view text) {
  Range out;
  if (text.empty()) {
    return out;
  }
  const std::string body(text.substr(1, text.size() - 2));
  out.low_open = text.front() == '(';
  out.high_open = text.back() == ')';
  out.low = std::strtod(body.c_str(), nullptr);
  out.high = std::strtod(body.c_str() + body.find(',') + 1, nullptr);
  return out;
}

std::vector<std::string> split(std::string_view text, char by) {
  std::vector<std::string> out;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t to = std::min(text.find(by, from), text.size());
    out.emplace_back(text.substr(from, to - from));
    from = to + 1;
  }
  return out;
}

std::optional<std::int64_t> as_int(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || text.empty()) {
    return std::nullopt;
  }
  return value;
}

// Plain decimal numbers only: no hex, no inf, no nan, no blanks.
std::optional<double> as_number(std::string_view text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '.' || c == 'e' || c == 'E' ||
           c == '+' || c == '-';
  });
  if (!plain) {
    return std::nullopt;
  }
  const std::string copy(text);
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  if (end != copy.c_str() + copy.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

tl::unexpected<Error> wrong_type(const char* expected) {
  return fail(ErrorCode::kType, strf("is not {}", expected));
}

Result<std::string> in_range(const FlagSpec& spec, double value, std::string text) {
  if (!range_of(spec.range).holds(value)) {
    return fail(ErrorCode::kRange, strf("is outside {}", spec.range), {},
                strf("the allowed range is {}", spec.range));
  }
  return text;
}

Result<std::string> check_int(const FlagSpec& spec, std::string_view text) {
  const std::optional<std::int64_t> value = as_int(text);
  if (!value) {
    return wrong_type("a whole number");
  }
  return in_range(spec, static_cast<double>(*value), strf("{}", *value));
}

Result<std::string> check_count(const FlagSpec& spec, std::string_view text) {
  static const std::map<char, double> kScale = {{'k', 1e3}, {'M', 1e6}, {'B', 1e9}, {'T', 1e12}};
  double scale = 1;
  std::string_view digits = text;
  if (!text.empty()) {
    const char last = text.back() == 'K' ? 'k' : text.back();
    if (const auto found = kScale.find(last); found != kScale.end()) {
      scale = found->second;
      digits.remove_suffix(1);
    }
  }
  const std::optional<double> value = as_number(digits);
  const double scaled = value ? *value * scale : 0.5;
  if (!value || scaled != std::floor(scaled) || std::abs(scaled) > 9e15) {
    return wrong_type("a whole number, with k, M, B or T allowed after it");
  }
  return in_range(spec, scaled, strf("{}", static_cast<std::int64_t>(scaled)));
}

Result<std::string> check_bytes(const FlagSpec& spec, std::string_view text) {
  static const std::map<std::string_view, double> kScale = {{"", 1},
                                                            {"KiB", 1024.0},
                                                            {"MiB", 1048576.0},
                                                            {"GiB", 1073741824.0},
                                                            {"TiB", 1099511627776.0}};
  const std::size_t end = std::min(text.find_first_not_of("0123456789.eE+-"), text.size());
  const std::optional<double> value = as_number(text.substr(0, end));
  const auto scale = kScale.find(text.substr(end));
  if (!value || scale == kScale.end() ||
      std::floor(*value * scale->second) != *value * scale->second) {
    return wrong_type("a number of bytes, alone or with KiB, MiB, GiB or TiB");
  }
  const double bytes = *value * scale->second;
  YETO_TRY(in_range(spec, bytes, ""));
  return strf("{}", static_cast<std::int64_t>(bytes));
}

Result<std::string> check_float(const FlagSpec& spec, std::string_view text) {
  const std::optional<double> value = as_number(text);
  if (!value) {
    return wrong_type("a number");
  }
  return in_range(spec, *value, std::string(text));
}

bool is_choice(const FlagSpec& spec, std::string_view text) {
  const std::vector<std::string> words = split(spec.choices, '|');
  return std::find(words.begin(), words.end(), text) != words.end();
}

Result<std::string> check_choice(const FlagSpec& spec, std::string_view text) {
  if (is_choice(spec, text)) {
    return std::string(text);
  }
  const std::vector<std::string> words = split(spec.choices, '|');
  const std::vector<std::string> near = nearest(text, words, 1);
  return fail(ErrorCode::kType, strf("is not one of {}", or_list(words)), {},
              near.empty() ? "" : strf("did you mean {}", near.front()));
}

Result<std::string> check_pair(const FlagSpec& spec, std::string_view text) {
  const std::vector<std::string> parts = split(text, ',');
  if (parts.size() != 2 || !as_number(parts[0]) || !as_number(parts[1])) {
    return wrong_type("two numbers joined by a comma");
  }
  YETO_TRY(in_range(spec, *as_number(parts[0]), parts[0]));
  YETO_TRY(in_range(spec, *as_number(parts[1]), parts[1]));
  return std::string(text);
}

Result<std::string> check_name(std::string_view text) {
  const bool shape = !text.empty() && text.size() <= 20 && text[0] >= 'a' && text[0] <= 'z' &&
                     std::all_of(text.begin(), text.end(), [](char c) {
                       return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
                     });
  if (!shape) {
    return fail(ErrorCode::kType, "is no name: a small letter, then up to 19 of a-z 0-9 -");
  }
  return std::string(text);
}

}  // namespace

Result<std::string> check_value(const FlagSpec& spec, std::string_view text) {
  switch (spec.type) {
    case FlagType::kText:
      if (text.empty()) {
        return fail(ErrorCode::kType, "is empty");
      }
      return std::string(text);
    case FlagType::kInt:
      return check_int(spec, text);
    case FlagType::kCount:
      return check_count(spec, text);
    case FlagType::kFloat:
    case FlagType::kSeconds:
      return check_float(spec, text);
    case FlagType::kBool:
      return std::string(text);
    case FlagType::kChoice:
      return check_choice(spec, text);
    case FlagType::kIntOr:
      return is_choice(spec, text) ? Result<std::string>(std::string(text)) : check_int(spec, text);
    case FlagType::kFloatOr:
      return is_choice(spec, text) ? Result<std::string>(std::string(text))
                                   : check_float(spec, text);
    case FlagType::kBytesOr:
      return is_choice(spec, text) ? Result<std::string>(std::string(text))
                                   : check_bytes(spec, text);
    case FlagType::kPair:
      return check_pair(spec, text);
    case FlagType::kName:
      return check_name(text);
  }
  return fail(ErrorCode::kInternal, "has a type without a check");
}

const Setting* FlagValues::find(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? nullptr : &found->second;
}

bool FlagValues::given(std::string_view name) const {
  const Setting* setting = find(name);
  return setting != nullptr && setting->origin == "argv";
}

std::string FlagValues::text(std::string_view name, std::string_view fallback) const {
  const Setting* setting = find(name);
  return setting == nullptr ? std::string(fallback) : setting->text;
}

std::int64_t FlagValues::integer(std::string_view name, std::int64_t fallback) const {
  const Setting* setting = find(name);
  return setting == nullptr ? fallback : as_int(setting->text).value_or(fallback);
}

double FlagValues::number(std::string_view name, double fallback) const {
  const Setting* setting = find(name);
  return setting == nullptr ? fallback : as_number(setting->text).value_or(fallback);
}

void FlagValues::set(std::string_view name, Setting setting) {
  values_.insert_or_assign(std::string(name), std::move(setting));
}

}  // namespace yeto::fleet
