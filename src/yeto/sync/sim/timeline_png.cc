// SPDX-License-Identifier: Apache-2.0
// The timeline as a PNG image: curves over time, drawn into a palette image whose bytes are stored
// without compression, so that no library is needed.
#include <array>
#include <cmath>
#include <string_view>

#include "yeto/base/format.h"
#include "yeto/sync/sim/curves.h"
#include "yeto/sync/sim/planning.h"

namespace yeto::sync::sim {
namespace {

constexpr int kWidth = 960;
constexpr int kPanel = 150;
constexpr int kLeft = 60;
constexpr int kTop = 26;
constexpr int kHeight = kPanel * static_cast<int>(std::size(kCurves)) + 20;

enum Colour : std::uint8_t { kWhite, kGrey, kBlue, kRed, kBlack };
constexpr std::uint8_t kPalette[] = {255, 255, 255, 150, 150, 150, 31, 111,
                                     178, 250, 215, 215, 0,   0,   0};

// Letters of 5 × 7 points, a byte per column, the lowest bit on top.
constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%.";
constexpr std::uint8_t kGlyphs[][5] = {
    {0x7e, 0x11, 0x11, 0x11, 0x7e}, {0x7f, 0x49, 0x49, 0x49, 0x36}, {0x3e, 0x41, 0x41, 0x41, 0x22},
    {0x7f, 0x41, 0x41, 0x22, 0x1c}, {0x7f, 0x49, 0x49, 0x49, 0x41}, {0x7f, 0x09, 0x09, 0x09, 0x01},
    {0x3e, 0x41, 0x49, 0x49, 0x7a}, {0x7f, 0x08, 0x08, 0x08, 0x7f}, {0x00, 0x41, 0x7f, 0x41, 0x00},
    {0x20, 0x40, 0x41, 0x3f, 0x01}, {0x7f, 0x08, 0x14, 0x22, 0x41}, {0x7f, 0x40, 0x40, 0x40, 0x40},
    {0x7f, 0x02, 0x0c, 0x02, 0x7f}, {0x7f, 0x04, 0x08, 0x10, 0x7f}, {0x3e, 0x41, 0x41, 0x41, 0x3e},
    {0x7f, 0x09, 0x09, 0x09, 0x06}, {0x3e, 0x41, 0x51, 0x21, 0x5e}, {0x7f, 0x09, 0x19, 0x29, 0x46},
    {0x46, 0x49, 0x49, 0x49, 0x31}, {0x01, 0x01, 0x7f, 0x01, 0x01}, {0x3f, 0x40, 0x40, 0x40, 0x3f},
    {0x1f, 0x20, 0x40, 0x20, 0x1f}, {0x3f, 0x40, 0x38, 0x40, 0x3f}, {0x63, 0x14, 0x08, 0x14, 0x63},
    {0x07, 0x08, 0x70, 0x08, 0x07}, {0x61, 0x51, 0x49, 0x45, 0x43}, {0x3e, 0x51, 0x49, 0x45, 0x3e},
    {0x00, 0x42, 0x7f, 0x40, 0x00}, {0x42, 0x61, 0x51, 0x49, 0x46}, {0x21, 0x41, 0x45, 0x4b, 0x31},
    {0x18, 0x14, 0x12, 0x7f, 0x10}, {0x27, 0x45, 0x45, 0x45, 0x39}, {0x3c, 0x4a, 0x49, 0x49, 0x30},
    {0x01, 0x71, 0x09, 0x05, 0x03}, {0x36, 0x49, 0x49, 0x49, 0x36}, {0x06, 0x49, 0x49, 0x29, 0x1e},
    {0x23, 0x13, 0x08, 0x64, 0x62}, {0x00, 0x60, 0x60, 0x00, 0x00}};
static_assert(std::size(kGlyphs) == kLetters.size());

class Canvas {
 public:
  void set(int x, int y, Colour colour) {
    if (x >= 0 && x < kWidth && y >= 0 && y < kHeight) {
      pixels_[static_cast<std::size_t>(y) * kWidth + static_cast<std::size_t>(x)] = colour;
    }
  }
  void line(double x0, double y0, double x1, double y1, Colour colour) {
    const int steps = 1 + static_cast<int>(std::max(std::abs(x1 - x0), std::abs(y1 - y0)));
    for (int i = 0; i <= steps; ++i) {
      const double share = static_cast<double>(i) / steps;
      set(static_cast<int>(std::lround(x0 + share * (x1 - x0))),
          static_cast<int>(std::lround(y0 + share * (y1 - y0))), colour);
    }
  }
  void text(int x, int y, std::string_view words) {
    for (const char c : words) {
      const char upper = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
      const std::size_t at = kLetters.find(upper);
      for (int column = 0; at != std::string_view::npos && column < 5; ++column) {
        for (int row = 0; row < 7; ++row) {
          if ((kGlyphs[at][column] >> row & 1) != 0) {
            set(x + column, y + row, kBlack);
          }
        }
      }
      x += 6;
    }
  }
  const std::vector<std::uint8_t>& pixels() const { return pixels_; }

 private:
  std::vector<std::uint8_t> pixels_ = std::vector<std::uint8_t>(std::size_t{kWidth} * kHeight);
};

void draw(Canvas& canvas, const PlanningReport& report, const Curve& curve, int top_y) {
  const double height = kPanel - kTop - 6;
  const double bottom = top_y + kTop + height;
  const double top = top_of(curve, report);
  const double end_s = std::max(report.simulated_s, 1e-9);
  const auto x = [&](double at_s) { return kLeft + at_s / end_s * (kWidth - kLeft - 10); };
  for (const TimelinePoint& point : report.timeline) {
    if (point.faults > 0) {
      canvas.line(x(point.at_s), top_y + kTop, x(point.at_s), bottom, kRed);
    }
  }
  canvas.line(kLeft, top_y + kTop, kLeft, bottom, kGrey);
  canvas.line(kLeft, bottom, kWidth - 10, bottom, kGrey);
  for (std::size_t i = 1; i < report.timeline.size(); ++i) {
    const auto y = [&](const TimelinePoint& p) { return bottom - curve.value(p) / top * height; };
    canvas.line(x(report.timeline[i - 1].at_s), y(report.timeline[i - 1]),
                x(report.timeline[i].at_s), y(report.timeline[i]), kBlue);
  }
  canvas.text(kLeft, top_y + 12, strf("{} {}", curve.name, curve.unit));
  canvas.text(8, top_y + kTop, strf("{:.4g}", top));
  canvas.text(8, static_cast<int>(bottom) - 6, "0");
}

// ---- the file format -------------------------------------------------------------------------

std::uint32_t crc32(std::span<const std::uint8_t> bytes) {
  std::uint32_t crc = 0xffffffffU;
  for (const std::uint8_t byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0xedb88320U : 0U);
    }
  }
  return ~crc;
}

void add_big_endian(Bytes& out, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) {
    out.push_back(static_cast<std::uint8_t>(value >> shift));
  }
}

void add_chunk(Bytes& out, std::string_view name, const Bytes& content) {
  add_big_endian(out, static_cast<std::uint32_t>(content.size()));
  Bytes named(name.begin(), name.end());
  named.insert(named.end(), content.begin(), content.end());
  out.insert(out.end(), named.begin(), named.end());
  add_big_endian(out, crc32(named));
}

// A zlib stream of stored blocks.
Bytes stored(const Bytes& raw) {
  constexpr std::size_t kBlock = 65535;
  Bytes out = {0x78, 0x01};
  std::uint32_t a = 1;
  std::uint32_t b = 0;
  for (std::size_t from = 0; from < raw.size(); from += kBlock) {
    const std::size_t size = std::min(kBlock, raw.size() - from);
    out.push_back(from + size == raw.size() ? 1 : 0);
    for (const std::size_t length : {size, ~size}) {
      out.push_back(static_cast<std::uint8_t>(length));
      out.push_back(static_cast<std::uint8_t>(length >> 8));
    }
    for (std::size_t i = from; i < from + size; ++i) {
      out.push_back(raw[i]);
      a = (a + raw[i]) % 65521;
      b = (b + a) % 65521;
    }
  }
  add_big_endian(out, b << 16 | a);
  return out;
}

}  // namespace

Bytes timeline_png(const PlanningReport& report) {
  Canvas canvas;
  int top_y = 0;
  for (const Curve& curve : kCurves) {
    draw(canvas, report, curve, top_y);
    top_y += kPanel;
  }
  canvas.text(kLeft, kHeight - 12,
              strf("0 to {} of virtual time. red. failures", human_seconds(report.simulated_s)));
  Bytes raw;
  for (int y = 0; y < kHeight; ++y) {
    raw.push_back(0);  // no filter
    const auto row = canvas.pixels().begin() + static_cast<std::ptrdiff_t>(y) * kWidth;
    raw.insert(raw.end(), row, row + kWidth);
  }
  Bytes out = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  Bytes head;
  add_big_endian(head, kWidth);
  add_big_endian(head, static_cast<std::uint32_t>(kHeight));
  for (const std::uint8_t value : {8, 3, 0, 0, 0}) {  // 8 bits a pixel, palette
    head.push_back(value);
  }
  add_chunk(out, "IHDR", head);
  add_chunk(out, "PLTE", Bytes(std::begin(kPalette), std::end(kPalette)));
  add_chunk(out, "IDAT", stored(raw));
  add_chunk(out, "IEND", {});
  return out;
}

}  // namespace yeto::sync::sim
