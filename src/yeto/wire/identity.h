// SPDX-License-Identifier: Apache-2.0
// Identities: the URIs by which a certificate says who its owner is in a run.
//
//   yeto://RUN/syncer        the run's syncer
//   yeto://RUN/seat/3        the learner of seat 3
//   yeto://RUN/seat/any      a learner that takes whatever seat is free
//   yeto://RUN/controller    yeto://RUN/observer
// Pure, thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "yeto/wire/messages.h"

namespace yeto::wire {

std::string syncer_identity(std::string_view run_id);
// Of who says HELLO with this role and seat.
std::string identity_of(std::string_view run_id, Role role, std::uint32_t seat);

struct Identity {
  std::string run_id;
  Role role = Role::kLearner;
  std::uint32_t seat = kNoSeat;  // of a learner; kNoSeat: any
  bool operator==(const Identity&) const = default;
};
// What identity_of() was made from; nothing for a syncer's or any other text.
std::optional<Identity> parse_identity(std::string_view uri);

}  // namespace yeto::wire
