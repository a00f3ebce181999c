// SPDX-License-Identifier: Apache-2.0
// FlagError: one refusal of a command line. A line can have several; they are all reported
// together.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "yeto/base/result.h"

namespace yeto::fleet {

struct FlagError {
  ErrorCode code = ErrorCode::kUsage;
  std::string what;
  std::string flag;        // "--gpu"; empty if the error belongs to no flag
  std::string value;       // the value as given; may be empty
  std::size_t offset = 0;  // bytes into `value`
  std::size_t length = 0;  // bytes; 0 if no part of the value is meant
  std::string why;
  std::vector<std::string> hints;

  // One line "error[E_…]: what", the value with carets under the bytes meant, why and hints.
  std::string text() const;
};

// The process exit code for a list of refusals: 64 if any is about usage, else that of the first.
int exit_code_of(const std::vector<FlagError>& errors);

// {"schema":"yeto.error/1","errors":[{code, what, where:{source, flag, value, offset, length}, why,
// hint:[…]}]}
std::string errors_as_json(const std::vector<FlagError>& errors);

// An Error of a lower room as a refusal that belongs to no flag.
FlagError flag_error_of(const Error& error);

}  // namespace yeto::fleet
