// SPDX-License-Identifier: Apache-2.0
// Goal: an identity has one spelling, and no other text stands for one.
#include "yeto/wire/identity.h"

#include <gtest/gtest.h>

namespace yeto::wire {
namespace {

TEST(Identity, WhatIsWrittenIsRead) {
  EXPECT_EQ(syncer_identity("run.1"), "yeto://run.1/syncer");
  for (const auto& [role, seat, text] :
       {std::tuple(Role::kLearner, 3U, "yeto://r/seat/3"),
        std::tuple(Role::kLearner, kNoSeat, "yeto://r/seat/any"),
        std::tuple(Role::kController, kNoSeat, "yeto://r/controller"),
        std::tuple(Role::kObserver, kNoSeat, "yeto://r/observer")}) {
    EXPECT_EQ(identity_of("r", role, seat), text);
    ASSERT_TRUE(parse_identity(text)) << text;
    EXPECT_EQ(*parse_identity(text), (Identity{"r", role, seat}));
  }
}

TEST(Identity, NothingElseIsRead) {
  for (const char* text :
       {"", "yeto://", "yeto://r", "yeto://r/", "yeto:///seat/1", "yeto://r/seat/",
        "yeto://r/seat/-1", "yeto://r/seat/03", "yeto://r/seat/3/", "yeto://r/seat/ANY",
        "yeto://r/seat/4294967295", "yeto://r/seat/4294967296", "yeto://r/syncer",
        "https://r/seat/1", "YETO://r/seat/1", "yeto://r/controller/x", "yeto://a/b/seat/1"}) {
    EXPECT_FALSE(parse_identity(text)) << text;
  }
}

}  // namespace
}  // namespace yeto::wire
