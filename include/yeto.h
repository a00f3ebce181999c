/* SPDX-License-Identifier: Apache-2.0
 *
 * yeto.h: the step boundary of a Yeto learner for C and whatever can call C.
 *
 * A learner trains on its own. Between two optimizer steps it calls yeto_step(), and the library
 * exchanges weights with the syncer of the run: deltas go out, merged values come in, on threads of
 * its own.
 *
 *   yeto_options options;
 *   yeto_options_init(&options);
 *   options.syncer = "@run/endpoint.json";
 *   options.run_id = "demo";
 *   options.token_file = "seat-0.key";
 *   yeto_boundary* boundary = NULL;
 *   if (yeto_open(&options, tensors, count, &boundary) != YETO_OK) { puts(yeto_last_error()); … }
 *   yeto_wait_ready(boundary, 0.0, NULL);            the run's values are in the tensors
 *   for (;;) {
 *     …one optimizer step on the tensors…
 *     yeto_report report; report.struct_size = sizeof report;
 *     if (yeto_step(boundary, tokens, &report) != YETO_OK) …
 *     if (report.draining) break;
 *   }
 *   yeto_finalize(boundary, YETO_FINALIZE_DRAIN, 0.0, NULL);   the final values are in the tensors
 *   yeto_close(boundary);
 *
 * Conventions (the functions refer to them by number)
 *  1. Results. Functions that can fail return a yeto_status; YETO_OK is 0. After any other status
 *     yeto_last_error() says what went wrong, where, and what to do, in English.
 *  2. Error text. It belongs to the calling thread and is valid until that thread's next call of a
 *     yeto_ function that returns a yeto_status.
 *  3. After an error of yeto_wait_ready, yeto_step, yeto_request_rows or yeto_finalize that is not
 *     YETO_ERROR_USAGE, YETO_ERROR_RANGE or YETO_ERROR_TIMEOUT, only yeto_leave and yeto_close are
 *     of use.
 *  4. Structs. The first member is struct_size, set by the caller to sizeof the struct as it was
 *     compiled. Later versions only append members: the library reads and writes no more than
 *     struct_size bytes, and members of options beyond it have their defaults. A struct_size
 *     smaller than that of version 1 is YETO_ERROR_USAGE. Output pointers may be NULL.
 *  5. Ownership. Strings and arrays given to a function are copied before it returns, except the
 *     memory of the tensors: it must stay valid and in place until yeto_close. Pointers that the
 *     library returns belong to it.
 *  6. Threads. Functions marked "trainer" are for one thread at a time, the one that trains; only
 *     inside them are tensors touched and callbacks called. Functions marked "any thread" may be
 *     called at any time until yeto_close, also from a callback. Different handles are independent.
 *  7. Times are in seconds. A timeout of 0 is no limit. Negative and non-finite times are
 *     YETO_ERROR_RANGE.
 *  8. Callbacks get the user pointer of the options. before_read and after_write return 0; any
 *     other number ends the call of the trainer with YETO_ERROR_CALLBACK.
 *  9. The library never exits the process, installs no signal handler and writes nothing to
 *     stdout. Warnings about lost and regained sessions go to stderr.
 * 10. A NULL handle or a NULL argument that is not said to be optional is YETO_ERROR_USAGE.
 */
#ifndef YETO_H_
#define YETO_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define YETO_API __attribute__((visibility("default")))
#else
#define YETO_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with every addition; the library of a larger number serves callers of a smaller one. */
#define YETO_ABI_VERSION 1

typedef enum yeto_status {
  YETO_OK = 0,
  YETO_ERROR_USAGE = 1,       /* a call or option that makes no sense */
  YETO_ERROR_RANGE = 2,       /* a number out of range */
  YETO_ERROR_TENSOR = 3,      /* tensors that cannot be exchanged */
  YETO_ERROR_DATA = 4,        /* a file or text that is invalid */
  YETO_ERROR_NOT_FOUND = 5,   /* a file that does not exist */
  YETO_ERROR_CREDENTIALS = 6, /* a key or certificate that cannot be used */
  YETO_ERROR_REFUSED = 7,     /* the syncer excludes this learner for good */
  YETO_ERROR_CLOSED = 8,      /* the run ended, or leave or close ended the call */
  YETO_ERROR_UNREACHABLE = 9, /* no session with the syncer for max_alone */
  YETO_ERROR_TIMEOUT = 10,    /* not done in time; the call may be made again */
  YETO_ERROR_DAMAGED = 11,    /* the final values are not the announced ones */
  YETO_ERROR_IO = 12,         /* the operating system reported an error */
  YETO_ERROR_CALLBACK = 13,   /* a callback returned another number than 0 */
  YETO_ERROR_INTERNAL = 14    /* a bug, or no memory */
} yeto_status;

/* Element types of tensors. Master values are exchanged as f32; a trainer with other types gives
 * f32 mirrors and the callbacks before_read and after_write. */
typedef enum yeto_dtype { YETO_F32 = 0 } yeto_dtype;

typedef enum yeto_phase {
  YETO_PHASE_LOAD = 0, /* not waited for in rounds, like eval and snapshot */
  YETO_PHASE_TRAIN = 1,
  YETO_PHASE_EVAL = 2,
  YETO_PHASE_SNAPSHOT = 3,
  YETO_PHASE_PAUSED = 4
} yeto_phase;

typedef enum yeto_finalize_reason {
  YETO_FINALIZE_DRAIN = 0, /* yeto_step() reported draining */
  YETO_FINALIZE_LIMIT = 1  /* this learner has reached its own limit */
} yeto_finalize_reason;

typedef enum yeto_leave_reason {
  YETO_LEAVE_DONE = 0,
  YETO_LEAVE_PREEMPTED = 1, /* the machine is being taken away */
  YETO_LEAVE_ERROR = 2
} yeto_leave_reason;

typedef enum yeto_pattern { YETO_PATTERN_BINPACK = 0, YETO_PATTERN_STRIDED = 1 } yeto_pattern;
typedef enum yeto_matrix_merge { YETO_MERGE_RDA = 0, YETO_MERGE_AVG = 1 } yeto_matrix_merge;

/* A learner's end of the exchange. Opaque. */
typedef struct yeto_boundary yeto_boundary;

/* One trainable tensor: `data` points to the product of `shape` contiguous values, which are read
 * and written in place. No struct_size: arrays of it never grow. */
typedef struct yeto_tensor {
  const char* name; /* canonical, the same on every island; unique */
  yeto_dtype dtype;
  const uint64_t* shape; /* NULL if ndim is 0: one value */
  size_t ndim;
  void* data; /* NULL only for tensors without values */
} yeto_tensor;

/* Ascending indices into the array given to yeto_open. */
typedef int (*yeto_tensor_callback)(void* user, const uint32_t* tensors, size_t count);

typedef struct yeto_contract_pair {
  const char* name; /* at most 64 bytes */
  const char* text; /* of any length: only its hash travels */
} yeto_contract_pair;

typedef struct yeto_options {
  size_t struct_size;
  const char* syncer;     /* "host:port", or "@FILE" of the endpoint.json, read at every connect */
  const char* run_id;     /* 1 to 64 bytes */
  const char* token_file; /* key of the seat (plain TCP to a loopback address), or NULL */
  const char* tls_cert;   /* certificate, key and CA (TLS 1.3), all three or none */
  const char* tls_key;
  const char* tls_ca;
  int insecure; /* not 0: plain TCP with token_file also to other than loopback addresses */
  int64_t seat; /* -1 (default): the syncer gives one */
  /* How trainable values are cut into fragments, the same on every island. */
  uint32_t fragments;             /* default 8 */
  yeto_pattern pattern;           /* default binpack */
  yeto_matrix_merge matrix_merge; /* default rda */
  /* What all islands of the run must agree on, by name; at most 64 pairs. */
  const yeto_contract_pair* contract;
  size_t contract_count;
  uint32_t streams;        /* data connections, 0 to 64; default 4 */
  double max_alone_s;      /* longest training without a session; default 600 */
  const char* device_text; /* for people; may be NULL */
  /* Where tensors mirror device memory: called before they are read (copy from the device) and
   * after they were written (copy to it). May be NULL. */
  yeto_tensor_callback before_read;
  yeto_tensor_callback after_write;
  /* Asked ten times a second while a call of the trainer waits; 0 ends it with YETO_ERROR_CLOSED.
   * May be NULL. */
  int (*keep_waiting)(void* user);
  void* user;
} yeto_options;

typedef struct yeto_ready {
  size_t struct_size;
  uint32_t seat;
  int joined_late; /* training had begun when this process was first admitted */
  int data_leases; /* the syncer hands out rows: yeto_request_rows() */
  uint64_t term;   /* of the syncer's life */
  uint64_t global_step;
} yeto_ready;

typedef struct yeto_report {
  size_t struct_size;
  int draining;  /* no more steps: call yeto_finalize() */
  int connected; /* there is a session now */
  uint64_t global_step;
  uint64_t run_tokens;
  uint64_t staleness_max; /* largest distance of a fragment to the newest version heard of */
  uint64_t pulls_waiting;
  double blocked_ms; /* of this call */
  size_t applied;    /* broadcasts applied in this call: yeto_applied_fragments() */
  size_t pushed;     /* deltas taken in this call: yeto_pushed_fragments() */
  size_t live;       /* live learners, this one included: yeto_live_seats() */
  /* Totals of the process. */
  uint64_t bytes_pushed;
  uint64_t bytes_received;
  uint64_t merged;  /* pushes the syncer merged */
  uint64_t carried; /* pushes that came late and were kept for the next round */
  uint64_t dropped;
  uint64_t nonfinite_pushes; /* deltas that were not finite and so not sent */
  uint64_t late_offers;      /* deltas offered unasked, after a break */
  uint64_t discarded_tokens; /* fragment-tokens of work that no push could carry */
  double residual_norm;      /* q4: of the newest rounding errors */
  uint64_t resets;           /* fragments set back to the last broadcast: values not finite */
} yeto_report;

typedef struct yeto_applied_fragment {
  uint32_t fragment;
  uint32_t overwritten; /* 1: the first one after a join, local work was replaced */
  uint64_t version;
} yeto_applied_fragment;

typedef struct yeto_pushed_fragment {
  uint32_t fragment;
  uint32_t reserved; /* 0 */
  uint64_t version;  /* the delta's base */
  uint64_t bytes;
} yeto_pushed_fragment;

/* Positions first, first + stride, … (`count` of them) of the sample order of an epoch. */
typedef struct yeto_rows {
  size_t struct_size;
  uint64_t epoch;
  uint64_t first;
  uint64_t count; /* 0: nothing is left, or the run drains */
  uint64_t stride;
} yeto_rows;

typedef struct yeto_final {
  size_t struct_size;
  uint64_t global_step;
  int lowest; /* this seat is the lowest live one: the one to write results */
} yeto_final;

/* ---- the library -------------------------------------------------------------------------- */

/* Any thread. "major.minor.patch" of the library. */
YETO_API const char* yeto_version(void);
/* Any thread. YETO_ABI_VERSION of the library. */
YETO_API uint32_t yeto_abi_version(void);
/* Any thread. The name of a status, like "YETO_ERROR_RANGE"; "unknown" for other numbers. */
YETO_API const char* yeto_status_name(yeto_status status);
/* Any thread. Convention 2; "" after YETO_OK. */
YETO_API const char* yeto_last_error(void);

/* ---- the life of a boundary ----------------------------------------------------------------- */

/* Any thread. Sets struct_size and all defaults. */
YETO_API void yeto_options_init(yeto_options* options);

/* Any thread. Checks options and tensors, cuts the fragments and begins to connect; does not wait.
 * On success `*out` is a handle to be freed by yeto_close, else NULL. Errors: USAGE, RANGE, TENSOR,
 * DATA, NOT_FOUND, CREDENTIALS. */
YETO_API yeto_status yeto_open(const yeto_options* options, const yeto_tensor* tensors,
                               size_t count, yeto_boundary** out);

/* Trainer. Waits until the tensors hold the run's values (as the first learner of a new run, its
 * own). Errors: REFUSED, CLOSED, UNREACHABLE, TIMEOUT, CALLBACK. */
YETO_API yeto_status yeto_wait_ready(yeto_boundary* boundary, double timeout_s, yeto_ready* out);

/* Trainer. Call it after every optimizer step; `tokens` is what the step has trained on, in the
 * unit that the learners of a run are weighted by. Answers pulls and applies broadcasts of the
 * fragments that are due. Waits only in lockstep, and after max_alone_s without the syncer.
 * Errors: REFUSED, CLOSED, UNREACHABLE (lockstep), CALLBACK. */
YETO_API yeto_status yeto_step(yeto_boundary* boundary, uint64_t tokens, yeto_report* out);

/* Trainer. Tells the syncer what the learner does; yeto_step() means training. */
YETO_API yeto_status yeto_set_phase(yeto_boundary* boundary, yeto_phase phase);

/* Trainer. No more steps: takes part in the last sweep and returns with the final values in the
 * tensors. Errors: as yeto_wait_ready, and DAMAGED. */
YETO_API yeto_status yeto_finalize(yeto_boundary* boundary, yeto_finalize_reason reason,
                                   double timeout_s, yeto_final* out);

/* Any thread. One JSON object of at most 8 KiB on one line, for the run's tape. Does not wait.
 * Errors: DATA. */
YETO_API yeto_status yeto_metric(yeto_boundary* boundary, const char* json);

/* Any thread. Tells the syncer that this learner goes and ends the session, within about 3 s; a
 * call of the trainer that waits ends with CLOSED. The handle must still be closed. */
YETO_API yeto_status yeto_leave(yeto_boundary* boundary, yeto_leave_reason reason);

/* Ends everything at once and frees the handle; no other thread may be inside a call or make one.
 * NULL is allowed. */
YETO_API void yeto_close(yeto_boundary* boundary);

/* ---- what the last call of the trainer has done (trainer) ----------------------------------- */

/* Number of fragments; 0 for a NULL handle. */
YETO_API size_t yeto_fragments(const yeto_boundary* boundary);
/* These four copy at most `capacity` entries of the last yeto_step() and return how many there
 * are: versions of all fragments in the tensors, seats of the live learners (ascending), and what
 * the report counts. */
YETO_API size_t yeto_versions(const yeto_boundary* boundary, uint64_t* out, size_t capacity);
YETO_API size_t yeto_live_seats(const yeto_boundary* boundary, uint32_t* out, size_t capacity);
YETO_API size_t yeto_applied_fragments(const yeto_boundary* boundary, yeto_applied_fragment* out,
                                       size_t capacity);
YETO_API size_t yeto_pushed_fragments(const yeto_boundary* boundary, yeto_pushed_fragment* out,
                                      size_t capacity);

/* ---- data leases ---------------------------------------------------------------------------- */

/* Trainer. At most `most` positions of the sample order for the next step; `rows`: the positions of
 * an epoch, the same in all calls and on all islands. Asks for more in time and waits only if none
 * is here. Rows need not be given back: they are complete once the work of the step that follows is
 * merged and durable. Errors: USAGE (before yeto_wait_ready, other `rows`, or a run without data
 * leases), RANGE (0), and as yeto_step. */
YETO_API yeto_status yeto_request_rows(yeto_boundary* boundary, uint64_t rows, uint64_t most,
                                       yeto_rows* out);

/* Any thread. The same without the syncer: the range of seat `seat` of `seats` that begins at the
 * `done`-th position of this seat, counted over epochs; `*out` as above, count 0 after `epochs`
 * epochs (0: never). Advance `done` by out->count. Errors: USAGE, RANGE. */
YETO_API yeto_status yeto_static_rows(uint64_t rows, uint32_t seat, uint32_t seats, uint64_t epochs,
                                      uint64_t done, uint64_t most, yeto_rows* out);

#ifdef __cplusplus
}
#endif

#endif /* YETO_H_ */
