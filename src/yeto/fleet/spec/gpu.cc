// SPDX-License-Identifier: Apache-2.0
#include "yeto/fleet/spec/gpu.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/fleet/spec/nearest.h"

namespace yeto::fleet {
namespace {

constexpr const char* kForm = "[k*]local:[1x]CORESxcpu, for example local:1xcpu,local:1xcpu";

const std::vector<std::string>& later_clouds() {
  static const std::vector<std::string> names = {"aws",    "azure",  "gcp", "lambda", "modal",
                                                 "nebius", "runpod", "ssh", "verda"};
  return names;
}

// Cards the product knows and this build cannot use, and cards for which no backend exists at all.
const std::vector<std::string>& later_cards() {
  static const std::vector<std::string> names = {
      "a10",          "a100",
      "a100-80gb",    "a10g",
      "a40",          "apple",
      "b200",         "b300",
      "gh200",        "h100",
      "h100-nvl",     "h100-pcie",
      "h200",         "l4",
      "l40",          "l40s",
      "rtx-3090",     "rtx-4090",
      "rtx-5090",     "t4",
      "v100",         "910b",
      "910b1",        "910b2",
      "910b3",        "910b4",
      "m1",           "m2",
      "m3",           "m4",
      "rtx-6000-ada", "rtx-pro-6000",
      "rtx-a6000",    "a100-80gb-pcie",
  };
  return names;
}
constexpr std::array<std::string_view, 4> kNoBackend = {"mi300x", "mi250x", "tpu", "gaudi3"};

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_alnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }
bool is_word(char c) { return is_alnum(c) || c == '-' || c == '_'; }

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

template <class List>
bool holds(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// Reads one slot from left to right; stops at its first error.
class SlotReader {
 public:
  SlotReader(std::string_view value, std::size_t begin, std::size_t end)
      : value_(value), begin_(begin), at_(begin), end_(end) {}

  // The number of copies (k) and the slot, or nothing and error() is set.
  std::optional<std::pair<int, Slot>> read() {
    int copies = 1;
    Slot slot;
    if (!read_copies(copies) || !read_cloud() || !read_shape(slot) || !read_end()) {
      return std::nullopt;
    }
    return std::make_pair(copies, slot);
  }
  const FlagError& error() const { return error_; }

 private:
  bool refuse(ErrorCode code, std::size_t offset, std::size_t length, std::string what) {
    error_.code = code;
    error_.what = std::move(what);
    error_.flag = "--gpu";
    error_.value = std::string(value_);
    error_.offset = offset;
    error_.length = std::max<std::size_t>(length, 1);
    return false;
  }
  bool explain(std::string why, std::string hint) {
    error_.why = std::move(why);
    error_.hints.push_back(std::move(hint));
    return false;
  }
  char peek() const { return at_ < end_ ? value_[at_] : '\0'; }
  std::string_view rest() const { return value_.substr(at_, end_ - at_); }

  // A whole number within [1, max] at the cursor.
  bool read_int(const char* name, int max, int& out) {
    const std::size_t from = at_;
    long number = 0;
    while (is_digit(peek())) {
      number = std::min(number * 10 + (peek() - '0'), 1'000'000L);
      ++at_;
    }
    const std::size_t digits = at_ - from;
    if (number == 0) {
      refuse(ErrorCode::kGpuCount, from, digits, strf("--gpu: the {} is zero", name));
      return explain(strf("the {} is a whole number from 1 to {}", name, max),
                     strf("write 1 to {} there, or leave the slot out", max));
    }
    if (value_[from] == '0') {
      refuse(ErrorCode::kGpuSyntax, from, digits, strf("--gpu: the {} begins with a zero", name));
      return explain("numbers have no leading zero", strf("write {}", number));
    }
    if (number > max) {
      refuse(ErrorCode::kGpuCount, from, digits, strf("--gpu: the {} is above {}", name, max));
      return explain(strf("the {} is a whole number from 1 to {}", name, max),
                     strf("write at most {} there", max));
    }
    out = static_cast<int>(number);
    return true;
  }

  bool read_copies(int& copies) {
    const std::size_t star = rest().find('*');
    if (star == std::string_view::npos || star > rest().find(':')) {
      return true;
    }
    if (!is_digit(peek())) {
      refuse(ErrorCode::kGpuSyntax, at_, star + 1, "--gpu: \"*\" needs a number before it");
      return explain(strf("the form is {}", kForm), "write 2*local:1xcpu for two equal islands");
    }
    if (!read_int("number of copies", kRepeatMax, copies)) {
      return false;
    }
    if (peek() != '*') {
      refuse(ErrorCode::kGpuSyntax, at_, 1, "--gpu: expected \"*\" after the number of copies");
      return explain(strf("the form is {}", kForm), "write 2*local:1xcpu for two equal islands");
    }
    ++at_;
    return true;
  }

  bool read_cloud() {
    const std::size_t colon = rest().find(':');
    if (colon == std::string_view::npos) {
      refuse(ErrorCode::kGpuSyntax, begin_, end_ - begin_, "--gpu: the slot names no cloud");
      return explain(strf("the form is {}", kForm), "write local: before the shape");
    }
    const std::string cloud = lower(rest().substr(0, colon));
    if (cloud != "local" && holds(later_clouds(), cloud)) {
      refuse(ErrorCode::kNotInBuild, at_, colon,
             strf("--gpu: cloud {} is not in this build", cloud));
      return explain("this build runs islands on this machine only",
                     "use local:CORESxcpu, for example local:1xcpu,local:1xcpu");
    }
    if (cloud != "local") {
      refuse(ErrorCode::kCloudUnknown, at_, colon, strf("--gpu: cloud \"{}\" is not known", cloud));
      std::vector<std::string> names = later_clouds();
      names.insert(names.begin() + 4, "local");
      const std::vector<std::string> near = nearest(cloud, names, 1);
      return explain("known clouds: aws azure gcp lambda local modal nebius runpod ssh verda",
                     near.empty() ? "use local:" : strf("did you mean {}:", near.front()));
    }
    at_ += colon + 1;
    return true;
  }

  bool read_shape(Slot& slot) {
    if (!is_digit(peek())) {
      refuse(ErrorCode::kGpuSyntax, at_, 1, "--gpu: expected the number of cores");
      return explain(strf("the form is {}", kForm), "write local:1xcpu");
    }
    const std::size_t first_at = at_;
    if (!read_int("number of cores", kCoresMax, slot.count) || !read_x(first_at)) {
      return false;
    }
    // Digits followed by "x" are the second number of NODESxCOUNTxGPU; else a card name begins.
    std::size_t look = at_;
    while (look < end_ && is_digit(value_[look])) {
      ++look;
    }
    if (look > at_ && look < end_ && (value_[look] == 'x' || value_[look] == 'X')) {
      const std::size_t first_end = at_ - 1;
      slot.nodes = slot.count;
      if (!read_int("number of cores", kCoresMax, slot.count)) {
        return false;
      }
      ++at_;
      if (slot.nodes > 1) {
        refuse(ErrorCode::kNotInBuild, first_at, first_end - first_at,
               "--gpu: islands of more than one node are not in this build");
        return explain("an island is one process", strf("write {}*local:{}xcpu for {} islands",
                                                        slot.nodes, slot.count, slot.nodes));
      }
    }
    return read_gpu(slot);
  }

  bool read_x(std::size_t shape_at) {
    if (peek() == 'x' || peek() == 'X') {
      ++at_;
      return true;
    }
    refuse(ErrorCode::kGpuSyntax, at_, 1, "--gpu: expected \"x\" between count and card");
    const std::string digits(value_.substr(shape_at, at_ - shape_at));
    std::string card;
    for (std::size_t i = at_; i < end_ && is_word(value_[i]); ++i) {
      card += value_[i];
    }
    return explain(strf("the form is {}", kForm),
                   strf("write local:{}x{}", digits, card.empty() ? "cpu" : lower(card)));
  }

  bool read_gpu(Slot& slot) {
    const std::size_t from = at_;
    while (at_ < end_ && is_word(value_[at_])) {
      ++at_;
    }
    if (at_ == from || !is_alnum(value_[from])) {
      refuse(ErrorCode::kGpuSyntax, from, 1, "--gpu: expected the name of a card");
      return explain(strf("the form is {}", kForm), "write local:1xcpu");
    }
    slot.gpu = lower(value_.substr(from, at_ - from));
    std::replace(slot.gpu.begin(), slot.gpu.end(), '_', '-');
    if (slot.gpu == "cpu") {
      return true;
    }
    if (holds(later_cards(), slot.gpu)) {
      refuse(ErrorCode::kNotInBuild, from, at_ - from,
             strf("--gpu: card {} is not in this build", slot.gpu));
      return explain("local islands run on cpu in this build", "write local:1xcpu");
    }
    refuse(ErrorCode::kGpuUnknown, from, at_ - from,
           strf("--gpu: card \"{}\" is not known", slot.gpu));
    std::vector<std::string> names = later_cards();
    names.insert(names.begin(), "cpu");
    const std::vector<std::string> near = nearest(slot.gpu, names, 3);
    const bool no_backend = holds(kNoBackend, slot.gpu);
    return explain(
        no_backend ? "no backend exists for this card" : "the table of cards has no such name",
        near.empty() || no_backend ? "write local:1xcpu" : strf("did you mean {}", or_list(near)));
  }

  bool read_end() {
    if (at_ == end_) {
      return true;
    }
    const char c = peek();
    const char* part = c == '@'   ? "a place (@region)"
                       : c == '|' ? "alternatives (|)"
                       : c == '[' ? "options in brackets"
                                  : nullptr;
    if (part != nullptr) {
      refuse(ErrorCode::kNotInBuild, at_, c == '[' ? end_ - at_ : 1,
             strf("--gpu: {} are not in this build", part));
      if (c == '@') {
        error_.what = "--gpu: a place (@region) is not in this build";
      }
      return explain("local slots have none", strf("end the slot before \"{}\"", c));
    }
    refuse(ErrorCode::kGpuSyntax, at_, end_ - at_, "--gpu: text after the card");
    return explain(strf("the form is {}", kForm), "separate islands by commas");
  }

  const std::string_view value_;
  const std::size_t begin_;
  std::size_t at_;
  const std::size_t end_;
  FlagError error_;
};

FlagError empty_slot(std::string_view value, std::size_t offset) {
  FlagError error;
  error.code = ErrorCode::kGpuSyntax;
  error.what = "--gpu: an empty slot between commas";
  error.flag = "--gpu";
  error.value = std::string(value);
  error.offset = std::min(offset, value.size());
  error.length = 1;
  error.why = strf("the form is {}", kForm);
  error.hints = {"take the comma away, or write a slot there"};
  return error;
}

FlagError no_island(std::string_view value) {
  FlagError error = empty_slot(value, 0);
  error.what = "--gpu: no island is named";
  error.hints = {"write for example --gpu local:1xcpu,local:1xcpu"};
  return error;
}

FlagError too_many(std::string_view value, std::size_t slots) {
  FlagError error = empty_slot(value, 0);
  error.code = ErrorCode::kGpuCount;
  error.what = strf("--gpu: {} islands are more than {}", slots, kSlotsMax);
  error.length = value.size();
  error.why = strf("a fleet has 1 to {} islands", kSlotsMax);
  error.hints = {"lower the number of copies"};
  return error;
}

}  // namespace

std::string Slot::text() const { return strf("{}:{}x{}x{}", cloud, nodes, count, gpu); }

std::string FleetSpec::text() const {
  std::string out;
  for (const Slot& slot : slots) {
    out += out.empty() ? "" : ",";
    out += slot.text();
  }
  return out;
}

FleetParse parse_fleet(std::string_view value) {
  FleetParse out;
  if (std::all_of(value.begin(), value.end(), [](char c) { return is_blank(c) || c == ','; })) {
    out.errors.push_back(no_island(value));
    return out;
  }
  for (std::size_t from = 0; from <= value.size();) {
    const std::size_t comma = std::min(value.find(',', from), value.size());
    std::size_t begin = from;
    std::size_t end = comma;
    while (begin < end && is_blank(value[begin])) {
      ++begin;
    }
    while (end > begin && is_blank(value[end - 1])) {
      --end;
    }
    if (begin == end) {
      out.errors.push_back(empty_slot(value, from));
    } else {
      SlotReader reader(value, begin, end);
      if (const auto read = reader.read()) {
        out.fleet.slots.insert(out.fleet.slots.end(), static_cast<std::size_t>(read->first),
                               read->second);
      } else {
        out.errors.push_back(reader.error());
      }
    }
    from = comma + 1;
  }
  if (out.errors.empty() && out.fleet.slots.size() > static_cast<std::size_t>(kSlotsMax)) {
    out.errors.push_back(too_many(value, out.fleet.slots.size()));
  }
  return out;
}

}  // namespace yeto::fleet
