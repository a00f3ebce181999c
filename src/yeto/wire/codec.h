// SPDX-License-Identifier: Apache-2.0
// Payloads of messages, derived from the field lists of messages.h:
//   number, enum     its little-endian bytes            array of u8      the bytes
//   text             u16 length, UTF-8 bytes             list             u32 count, elements
//   struct           its fields in order
// A decoder checks every length against the field's bound and against the bytes that are there
// before it allocates. It refuses missing bytes, unknown enum values and texts that are not UTF-8,
// and ignores trailing bytes (a newer minor). Pure functions, thread-safe.
#pragma once

#include <string>

#include "yeto/base/bytes.h"
#include "yeto/base/result.h"
#include "yeto/base/rng.h"
#include "yeto/wire/frame.h"
#include "yeto/wire/messages.h"

namespace yeto::wire {

Type type_of(const Message& message);

// The payload. A text longer than its bound is cut at a character, bytes that are not UTF-8 become
// '?'; a list longer than its bound is a bug (YETO_CHECK). Declared for every alternative of
// Message.
template <class M>
Bytes encode(const M& message);
Bytes encode_message(const Message& message);

// kProtocol names message and field. The direction decides which HEARTBEAT it is; a type that may
// not travel that way is refused.
Result<Message> decode(Type type, Direction direction, ByteView payload);

// Smallest and largest payload this build writes for a message.
template <class M>
std::size_t min_bytes();
template <class M>
std::size_t max_bytes();

// "PULL{term=1 fragment=2 …}" for logs. Secrets (nonce, proof, session) and long lists are shown by
// size.
std::string to_text(const Message& message);

// A message of that type and direction with random values in every field, for tests and fuzzing.
// Lists and texts are mostly short, now and then at their bound (CHUNK stays ≤ 4 KiB). The type
// must be allowed.
Message random_message(Rng& rng, Type type, Direction direction);

// What the proof of HELLO or ATTACH is computed over: the nonce of the connection's CHALLENGE, then
// the encoding of the message with a zero proof. Fields a later minor appends are not covered.
Bytes proof_input(const Nonce& nonce, const Hello& message);
Bytes proof_input(const Nonce& nonce, const Attach& message);
// HMAC-SHA256(key, proof_input).
Proof make_proof(ByteView key, const Nonce& nonce, const Hello& message);
Proof make_proof(ByteView key, const Nonce& nonce, const Attach& message);
// Compares in constant time.
bool proof_ok(ByteView key, const Nonce& nonce, const Hello& message);
bool proof_ok(ByteView key, const Nonce& nonce, const Attach& message);

}  // namespace yeto::wire
