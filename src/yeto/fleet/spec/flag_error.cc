// SPDX-License-Identifier: Apache-2.0
#include "yeto/fleet/spec/flag_error.h"

#include <algorithm>

#include "yeto/base/format.h"

namespace yeto::fleet {
namespace {

// Carets stand under characters, not bytes: continuation bytes of UTF-8 take no column.
std::size_t columns(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

}  // namespace

std::string FlagError::text() const {
  std::string out = strf("error[{}]: {}\n", error_name(code), what);
  if (!flag.empty() && (!value.empty() || length > 0)) {
    out += strf("  {} {}\n", flag, value);
    if (length > 0) {
      const std::string before = value.substr(0, std::min(offset, value.size()));
      const std::string meant = offset < value.size() ? value.substr(offset, length) : " ";
      out += std::string(2 + flag.size() + 1 + columns(before), ' ') +
             std::string(std::max<std::size_t>(columns(meant), 1), '^') + "\n";
    }
  }
  if (!why.empty()) {
    out += strf("  why: {}\n", why);
  }
  for (const std::string& hint : hints) {
    out += strf("  hint: {}\n", hint);
  }
  return out;
}

int exit_code_of(const std::vector<FlagError>& errors) {
  for (const FlagError& error : errors) {
    if (error_exit_code(error.code) == 64) {
      return 64;
    }
  }
  return errors.empty() ? 0 : error_exit_code(errors.front().code);
}

FlagError flag_error_of(const Error& error) {
  FlagError out;
  out.code = error.code;
  out.what = error.what;
  out.why = error.where.empty() ? "" : "at " + error.where;
  if (!error.hint.empty()) {
    out.hints.push_back(error.hint);
  }
  return out;
}

}  // namespace yeto::fleet
