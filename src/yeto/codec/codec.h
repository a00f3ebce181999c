// SPDX-License-Identifier: Apache-2.0
// Codecs: how the values of a fragment travel. A flat f32 vector becomes an image of bytes and
// back.
//   f32   4 bytes a value, the very bits.
//   bf16  2 bytes a value, rounded to nearest even; NaN stays NaN.
//   q4    0.516 bytes a value: blocks of 256 values, f32 scale = max|x|, then a nibble each, low
//         nibble first. Nibble: sign in bit 3, level L in bits 0 to 2: 0 → 0, else 2^(L−7)·scale.
//         The level of |x|/scale (rounded to f32) changes at 2^(k+½), k = −7 … −1; level 0 carries
//         no sign. The last block is filled up with zeros. For changes of values: pushes, and what
//         leads from one public value to the next.
// The public value of a fragment is what every up-to-date learner holds as its anchor. Its dtype is
// f32 under f32, and bf16 under bf16 and q4. Under f32 and bf16 its bytes are those of the
// broadcast image; under q4 it is bf16(old + dec(image)). public_digest is the XXH3-128 of its
// bytes. All functions are pure and thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "yeto/base/bytes.h"
#include "yeto/base/digest.h"
#include "yeto/base/result.h"
#include "yeto/tensor/dtype.h"

namespace yeto::codec {

// Trainables of at least this many values travel as bf16 unless told otherwise.
inline constexpr std::uint64_t kBf16FromValues = std::uint64_t{64} << 20;

CodecId default_codec(std::uint64_t trainable_values);
// "f32", "bf16", "q4".
std::string_view codec_name(CodecId codec);
// kType for an unknown name.
Result<CodecId> codec_from_name(std::string_view name);
// kType for a number that is no codec; call it where a codec enters the program.
Status check_codec(CodecId codec);

// Bytes of the image of `values` values.
std::uint64_t encoded_bytes(CodecId codec, std::uint64_t values);

// `image` must have encoded_bytes(codec, values.size()) bytes; kInternal if not. A q4 block with a
// value that is not finite gets such a scale, so that nobody takes the image for a good one.
Status encode(CodecId codec, std::span<const float> values, MutableByteView image);
// kData for what yeto::check_image refuses (tensor/image.h).
Status decode(CodecId codec, ByteView image, std::span<float> values);
// Error feedback of pushes under q4: the image of delta + residual; `residual` becomes what the
// image does not say, (delta + residual) − dec(image). Begin with zeros. kInternal if a size is
// wrong.
Status encode_q4_feedback(std::span<const float> delta, std::span<float> residual,
                          MutableByteView image);
// The next public value, bf16(f32(old_public) + dec(image)) value by value; both in bf16, 2 bytes a
// value, at even addresses; they may be the same memory. kData for what check_image refuses or if
// the result is not finite (then new_public is to be thrown away), kInternal if a size is wrong.
Status apply_q4(ByteView image, ByteView old_public, MutableByteView new_public);

// DType of the anchor that learners keep: kF32 under f32, kBf16 under bf16 and q4.
DType anchor_dtype(CodecId codec);
// XXH3-128 of a public value, given as its bytes in the anchor dtype (an image of f32 or bf16).
Xxh128 public_digest(ByteView public_value);

}  // namespace yeto::codec
