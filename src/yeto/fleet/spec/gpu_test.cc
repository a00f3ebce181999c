// SPDX-License-Identifier: Apache-2.0
// Goal: the --gpu grammar, its refusals with byte offsets, and parse ∘ print = identity.
// Method: tables of texts; random fleets and random bytes from printed seeds.
#include "yeto/fleet/spec/gpu.h"

#include <gtest/gtest.h>

#include "yeto/base/format.h"
#include "yeto/base/rng.h"

namespace yeto::fleet {
namespace {

FlagError only_error(std::string_view value) {
  const FleetParse parse = parse_fleet(value);
  EXPECT_EQ(parse.errors.size(), 1u) << value;
  return parse.errors.empty() ? FlagError{} : parse.errors.front();
}

bool says(const FlagError& error, std::string_view part) {
  return error.text().find(part) != std::string::npos;
}

TEST(Gpu, CanonicalPrintNamesNodes) {
  EXPECT_EQ(parse_fleet("local:1xcpu,local:4xcpu").fleet.text(), "local:1x1xcpu,local:1x4xcpu");
}

TEST(Gpu, CopiesAreExpandedInSeatOrder) {
  const FleetParse parse = parse_fleet("2*local:2xcpu,local:1xcpu");
  ASSERT_TRUE(parse.errors.empty());
  ASSERT_EQ(parse.fleet.slots.size(), 3u);
  EXPECT_EQ(parse.fleet.slots[1].count, 2);
  EXPECT_EQ(parse.fleet.slots[2].count, 1);
}

TEST(Gpu, BlanksAndCaseDoNotMatter) {
  const FleetParse parse = parse_fleet("  LOCAL:1xCPU ,\tlocal:1X2XCpu ");
  ASSERT_TRUE(parse.errors.empty());
  EXPECT_EQ(parse.fleet.text(), "local:1x1xcpu,local:1x2xcpu");
}

TEST(Gpu, ParseOfPrintIsIdentity) {
  const std::uint64_t seed = 20260;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  for (int round = 0; round < 500; ++round) {
    FleetSpec fleet;
    const std::uint64_t slots = 1 + rng.below(20);
    for (std::uint64_t i = 0; i < slots; ++i) {
      fleet.slots.push_back(Slot{.count = static_cast<int>(1 + rng.below(kCoresMax))});
    }
    const FleetParse parse = parse_fleet(fleet.text());
    ASSERT_TRUE(parse.errors.empty()) << fleet.text();
    ASSERT_EQ(parse.fleet, fleet);
  }
}

struct Refusal {
  const char* value;
  ErrorCode code;
  std::size_t offset;
  std::size_t length;
  const char* says;
};

class GpuRefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(GpuRefusal, NamesCodeAndBytes) {
  const Refusal& expected = GetParam();
  const FlagError error = only_error(expected.value);
  EXPECT_EQ(error_name(error.code), error_name(expected.code)) << expected.value;
  EXPECT_EQ(error.offset, expected.offset) << error.text();
  EXPECT_EQ(error.length, expected.length) << error.text();
  EXPECT_TRUE(says(error, expected.says)) << error.text();
  EXPECT_FALSE(error.why.empty()) << expected.value;
  EXPECT_FALSE(error.hints.empty()) << expected.value;
}

INSTANTIATE_TEST_SUITE_P(
    Rows, GpuRefusal,
    ::testing::Values(
        Refusal{"", ErrorCode::kGpuSyntax, 0, 1, "no island"},
        Refusal{" , ,", ErrorCode::kGpuSyntax, 0, 1, "local:1xcpu,local:1xcpu"},
        Refusal{"local:1xcpu,", ErrorCode::kGpuSyntax, 12, 1, "empty slot"},
        Refusal{"local:8cpu", ErrorCode::kGpuSyntax, 7, 1, "local:8xcpu"},
        Refusal{"local:0xcpu", ErrorCode::kGpuCount, 6, 1, "number of cores is zero"},
        Refusal{"local:0x8xcpu", ErrorCode::kGpuCount, 6, 1, "1 to 1024"},
        Refusal{"0*local:1xcpu", ErrorCode::kGpuCount, 0, 1, "copies is zero"},
        Refusal{"65*local:1xcpu", ErrorCode::kGpuCount, 0, 2, "1 to 64"},
        Refusal{"local:01xcpu", ErrorCode::kGpuSyntax, 6, 2, "zero"},
        Refusal{"local:1025xcpu", ErrorCode::kGpuCount, 6, 4, "1 to 1024"},
        Refusal{"local:99999999999999999999xcpu", ErrorCode::kGpuCount, 6, 20, "above"},
        Refusal{"local:2x4xcpu", ErrorCode::kNotInBuild, 6, 1, "2*local:4xcpu"},
        Refusal{"aws:8xh100", ErrorCode::kNotInBuild, 0, 3, "not in this build"},
        Refusal{"local:1xcpu, ssh:host", ErrorCode::kNotInBuild, 13, 3, "not in this build"},
        Refusal{"awz:8xh100", ErrorCode::kCloudUnknown, 0, 3, "did you mean aws"},
        Refusal{"loca:1xcpu", ErrorCode::kCloudUnknown, 0, 4, "did you mean local"},
        Refusal{"local:8xh100", ErrorCode::kNotInBuild, 8, 4, "not in this build"},
        Refusal{"local:8xh101", ErrorCode::kGpuUnknown, 8, 4, "h100"},
        Refusal{"local:8xtpu", ErrorCode::kGpuUnknown, 8, 3, "no backend"},
        Refusal{"local:1xcpu@here", ErrorCode::kNotInBuild, 11, 1,
                "a place (@region) is not in this build"},
        Refusal{"local:1xcpu|local:2xcpu", ErrorCode::kNotInBuild, 11, 1, "alternatives"},
        Refusal{"local:1xcpu[spot]", ErrorCode::kNotInBuild, 11, 6, "options"},
        Refusal{"local:1xcpu!", ErrorCode::kGpuSyntax, 11, 1, "text after the card"},
        Refusal{"1xcpu", ErrorCode::kGpuSyntax, 0, 5, "local:"},
        Refusal{"local:", ErrorCode::kGpuSyntax, 6, 1, "number of cores"},
        Refusal{"local:1x", ErrorCode::kGpuSyntax, 8, 1, "name of a card"},
        Refusal{"x*local:1xcpu", ErrorCode::kGpuSyntax, 0, 2, "needs a number"},
        Refusal{"2x*local:1xcpu", ErrorCode::kGpuSyntax, 1, 1, "expected \"*\""}));

TEST(Gpu, TooManySlotsAreRefusedAsOne) {
  const FlagError error =
      only_error("64*local:1xcpu,64*local:1xcpu,64*local:1xcpu,64*local:1xcpu,local:1xcpu");
  EXPECT_EQ(error.code, ErrorCode::kGpuCount);
  EXPECT_TRUE(says(error, "257")) << error.text();
}

TEST(Gpu, EachBadSlotIsReported) {
  EXPECT_EQ(parse_fleet("local:0xcpu,local:1xcpu,awz:1xcpu").errors.size(), 2u);
}

TEST(Gpu, CaretStandsUnderTheByte) {
  EXPECT_NE(only_error("local:8cpu").text().find("  --gpu local:8cpu\n               ^\n"),
            std::string::npos)
      << only_error("local:8cpu").text();
}

TEST(Gpu, RandomBytesGiveOffsetsInsideTheValue) {
  const std::uint64_t seed = 77;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  const std::string letters = "local:1x4xcpu,*|[]@ 0aws\xc3\xa4:";
  for (int round = 0; round < 20000; ++round) {
    std::string value;
    for (std::uint64_t i = rng.below(24); i > 0; --i) {
      value += letters[rng.below(letters.size())];
    }
    for (const FlagError& error : parse_fleet(value).errors) {
      ASSERT_LE(error.offset, value.size()) << value;
      ASSERT_LE(error.offset + error.length, value.size() + 1) << value;
      ASSERT_FALSE(error.text().empty());
    }
  }
}

}  // namespace
}  // namespace yeto::fleet
