// SPDX-License-Identifier: Apache-2.0
#include "yeto/wire/identity.h"

#include <charconv>

#include "yeto/base/format.h"

namespace yeto::wire {
namespace {

constexpr std::string_view kScheme = "yeto://";
constexpr std::string_view kSeat = "seat/";

}  // namespace

std::string syncer_identity(std::string_view run_id) {
  return strf("{}{}/syncer", kScheme, run_id);
}

std::string identity_of(std::string_view run_id, Role role, std::uint32_t seat) {
  switch (role) {
    case Role::kController:
      return strf("{}{}/controller", kScheme, run_id);
    case Role::kObserver:
      return strf("{}{}/observer", kScheme, run_id);
    case Role::kLearner:
      break;
  }
  return seat == kNoSeat ? strf("{}{}/seat/any", kScheme, run_id)
                         : strf("{}{}/seat/{}", kScheme, run_id, seat);
}

std::optional<Identity> parse_identity(std::string_view uri) {
  if (!uri.starts_with(kScheme)) {
    return std::nullopt;
  }
  const std::string_view rest = uri.substr(kScheme.size());
  const std::size_t slash = rest.find('/');
  if (slash == 0 || slash == std::string_view::npos) {
    return std::nullopt;
  }
  Identity identity;
  identity.run_id = std::string(rest.substr(0, slash));
  const std::string_view who = rest.substr(slash + 1);
  if (who == "controller") {
    identity.role = Role::kController;
  } else if (who == "observer") {
    identity.role = Role::kObserver;
  } else if (!who.starts_with(kSeat)) {
    return std::nullopt;
  } else if (const std::string_view seat = who.substr(kSeat.size()); seat != "any") {
    const auto [end, ec] = std::from_chars(seat.data(), seat.data() + seat.size(), identity.seat);
    if (ec != std::errc() || end != seat.data() + seat.size() || identity.seat == kNoSeat) {
      return std::nullopt;
    }
  }
  // One spelling only: "seat/03" is nobody.
  if (identity_of(identity.run_id, identity.role, identity.seat) != uri) {
    return std::nullopt;
  }
  return identity;
}

}  // namespace yeto::wire
