// SPDX-License-Identifier: Apache-2.0
// The --gpu grammar: which islands a run has.
//   fleet = slot , { "," , slot } ;   slot = [ int , "*" ] , "local:" , [ "1x" ] , int , "x" ,
//   "cpu" ;
// Blanks around slots are dropped; case of cloud and card is ignored; int has no leading zero.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "yeto/fleet/spec/flag_error.h"

namespace yeto::fleet {

inline constexpr int kRepeatMax = 64;   // k of k*slot
inline constexpr int kSlotsMax = 256;   // slots of one fleet, after k* is expanded
inline constexpr int kCoresMax = 1024;  // C of local:Cxcpu

// One island. Seats follow the order of the slots.
struct Slot {
  std::string cloud = "local";
  int nodes = 1;
  int count = 1;  // cards of a node; for cpu: cores, which become the island's threads
  std::string gpu = "cpu";

  bool operator==(const Slot&) const = default;
  // Canonical: "local:1x4xcpu", always with the number of nodes.
  std::string text() const;
};

struct FleetSpec {
  std::vector<Slot> slots;

  bool operator==(const FleetSpec&) const = default;
  // Canonical slots joined by commas; parsing it gives an equal fleet.
  std::string text() const;
};

struct FleetParse {
  FleetSpec fleet;                // meaningful only without errors
  std::vector<FlagError> errors;  // at most one for each slot
};

FleetParse parse_fleet(std::string_view value);

}  // namespace yeto::fleet
