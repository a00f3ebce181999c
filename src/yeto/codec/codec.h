// SPDX-License-Identifier: Apache-2.0
// Codecs: how the values of a fragment travel. A flat f32 vector becomes an image of bytes and
// back.
//   f32   4 bytes a value, the very bits.
//   bf16  2 bytes a value, rounded to nearest even; NaN stays NaN.
//   q4    named by the protocol; encode and decode refuse it (kNotInBuild).
// The public value of a fragment is what decode gives from its broadcast image. Its anchor dtype is
// f32 under f32 and bf16 under bf16, so its bytes in the anchor dtype are the image's bytes, and
// public_digest is the XXH3-128 of them. All functions are pure and thread-safe.
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
// kType for an unknown name, kNotInBuild for one this build cannot encode.
Result<CodecId> codec_from_name(std::string_view name);
// kNotInBuild for a codec this build cannot encode; call it where a codec enters the program.
Status check_codec(CodecId codec);

// Bytes of the image of `values` values (q4 included, so that offers can be judged).
std::uint64_t encoded_bytes(CodecId codec, std::uint64_t values);

// `image` must have encoded_bytes(codec, values.size()) bytes. kInternal if not, kNotInBuild for
// q4.
Status encode(CodecId codec, std::span<const float> values, MutableByteView image);
// kData if the image's size is not that of `values.size()` values, kNotInBuild for q4.
Status decode(CodecId codec, ByteView image, std::span<float> values);

// DType of the anchor that learners keep: kF32 under f32, kBf16 under bf16 and q4.
DType anchor_dtype(CodecId codec);
// XXH3-128 of the public value in its anchor dtype; `image` is an image of f32 or bf16.
Xxh128 public_digest(ByteView image);

}  // namespace yeto::codec
