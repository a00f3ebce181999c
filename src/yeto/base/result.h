// SPDX-License-Identifier: Apache-2.0
// Result<T>: a value or an Error. Errors travel as values between rooms; exceptions never do.
// YETO_CHECK is for bugs of this program only (on in release builds); a peer's input is never
// checked by it.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace yeto {

enum class ErrorCode {
#define YETO_ERROR(id, name, exit_code, meaning) id,
#include "yeto/base/errors.def"
#undef YETO_ERROR
};

// "E_DATA" for kData.
std::string_view error_name(ErrorCode code);
// The process exit code a command ends with when this error ends it.
int error_exit_code(ErrorCode code);

// What went wrong, where, and what the reader can do about it.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string what;
  std::string where;
  std::string hint;

  // "error[E_DATA]: what\n  where: …\n  hint: …\n"; empty parts are left out.
  std::string text() const;
};

template <class T>
using Result = tl::expected<T, Error>;

struct Unit {};
using Status = Result<Unit>;

inline tl::unexpected<Error> fail(ErrorCode code, std::string what, std::string where = {},
                                  std::string hint = {}) {
  return tl::unexpected<Error>(Error{code, std::move(what), std::move(where), std::move(hint)});
}
inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

// An Error of kIo with the text of errno.
Error io_error(std::string_view what, std::string_view where, int error_number);

[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const char* message);

}  // namespace yeto

#define YETO_CHECK(condition, message)    \
  (static_cast<bool>(condition) ? void(0) \
                                : ::yeto::check_failed(#condition, __FILE__, __LINE__, message))

#define YETO_JOIN_INNER(a, b) a##b
#define YETO_JOIN(a, b) YETO_JOIN_INNER(a, b)

// Leaves the function with the error of a Result expression.
#define YETO_TRY(expression)                                   \
  do {                                                         \
    auto&& yeto_try_result = (expression);                     \
    if (!yeto_try_result) {                                    \
      return ::yeto::fail(std::move(yeto_try_result).error()); \
    }                                                          \
  } while (false)

// YETO_ASSIGN(auto x, f()): x becomes the value, or the function leaves with the error.
#define YETO_ASSIGN(target, expression) \
  YETO_ASSIGN_INNER(target, expression, YETO_JOIN(yeto_assign_, __LINE__))
#define YETO_ASSIGN_INNER(target, expression, holder) \
  auto holder = (expression);                         \
  if (!holder) {                                      \
    return ::yeto::fail(std::move(holder).error());   \
  }                                                   \
  target = std::move(*holder)
