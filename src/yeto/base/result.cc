// SPDX-License-Identifier: Apache-2.0
#include "yeto/base/result.h"

#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace yeto {
namespace {

struct CodeRow {
  std::string_view name;
  int exit_code;
};

constexpr CodeRow kRows[] = {
#define YETO_ERROR(id, name, exit_code, meaning) {name, exit_code},
#include "yeto/base/errors.def"
#undef YETO_ERROR
};

}  // namespace

std::string_view error_name(ErrorCode code) { return kRows[static_cast<size_t>(code)].name; }

int error_exit_code(ErrorCode code) { return kRows[static_cast<size_t>(code)].exit_code; }

std::string Error::text() const {
  std::string out = "error[" + std::string(error_name(code)) + "]: " + what + "\n";
  if (!where.empty()) {
    out += "  where: " + where + "\n";
  }
  if (!hint.empty()) {
    out += "  hint: " + hint + "\n";
  }
  return out;
}

Error io_error(std::string_view what, std::string_view where, int error_number) {
  return Error{ErrorCode::kIo,
               std::string(what) + ": " + std::generic_category().message(error_number),
               std::string(where),
               {}};
}

void check_failed(const char* condition, const char* file, int line, const char* message) {
  std::fprintf(stderr, "yeto: bug: %s (%s) at %s:%d\n", message, condition, file, line);
  std::abort();
}

}  // namespace yeto
