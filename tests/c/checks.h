/* SPDX-License-Identifier: Apache-2.0
 * What c_abi_test.cc lets checks.c do. Everything here is C99. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { kMatrixValues = 12, kVectorValues = 5 };

/* One island: the trainer works on `device`, the library on a mirror. */
typedef struct island {
  const char* syncer;
  const char* run_id;
  const char* token_file;
  uint32_t seat;
  int leased;           /* take rows by data leases */
  volatile int waiting; /* 0: keep_waiting says no */
  float device[kMatrixValues + kVectorValues];
  float mirror[kMatrixValues + kVectorValues];
  /* Outcome. */
  uint64_t reads; /* calls of the callbacks */
  uint64_t writes;
  uint64_t steps;
  uint64_t rows;
  uint64_t global_step;
  uint64_t merged;
  uint64_t applied;
  uint64_t pushed;
  size_t fragments;
  uint64_t versions[8];
  char error[512]; /* "": all went well */
} island;

/* A whole life: open, wait, steps until the run drains, final values. */
void live(island* it);

/* Calls that must be refused. Returns the number of checks that failed and prints them. */
int refusals(const char* token_file);
/* open, then a step whose callback fails; returns the status, fills it->error. */
int failing_callback(island* it);
/* A wait that keep_waiting ends. Returns the status. */
int interrupted_wait(island* it);

#ifdef __cplusplus
}
#endif
