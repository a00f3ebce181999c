/* SPDX-License-Identifier: Apache-2.0 */
#include "checks.h"

#include <stdio.h>
#include <string.h>

#include <yeto.h>

static const uint64_t kMatrixShape[2] = {3, 4};
static const uint64_t kVectorShape[1] = {kVectorValues};

static int refresh(void* user, const uint32_t* tensors, size_t count) {
  island* it = (island*)user;
  size_t i;
  ++it->reads;
  for (i = 0; i < count; ++i) {
    if (tensors[i] == 0) {
      memcpy(it->mirror, it->device, kMatrixValues * sizeof(float));
    } else {
      memcpy(it->mirror + kMatrixValues, it->device + kMatrixValues, kVectorValues * sizeof(float));
    }
  }
  return 0;
}

static int write_back(void* user, const uint32_t* tensors, size_t count) {
  island* it = (island*)user;
  size_t i;
  ++it->writes;
  for (i = 0; i < count; ++i) {
    if (tensors[i] == 0) {
      memcpy(it->device, it->mirror, kMatrixValues * sizeof(float));
    } else {
      memcpy(it->device + kMatrixValues, it->mirror + kMatrixValues, kVectorValues * sizeof(float));
    }
  }
  return 0;
}

static int fail_write(void* user, const uint32_t* tensors, size_t count) {
  (void)user;
  (void)tensors;
  (void)count;
  return 7;
}

static int keep_waiting(void* user) { return ((island*)user)->waiting; }

static void describe(island* it, yeto_tensor* tensors, yeto_options* options) {
  tensors[0].name = "matrix";
  tensors[0].dtype = YETO_F32;
  tensors[0].shape = kMatrixShape;
  tensors[0].ndim = 2;
  tensors[0].data = it->mirror;
  tensors[1] = tensors[0];
  tensors[1].name = "vector";
  tensors[1].shape = kVectorShape;
  tensors[1].ndim = 1;
  tensors[1].data = it->mirror + kMatrixValues;
  yeto_options_init(options);
  options->syncer = it->syncer;
  options->run_id = it->run_id;
  options->token_file = it->token_file;
  options->seat = it->seat;
  options->fragments = 2;
  options->streams = 1;
  options->before_read = refresh;
  options->after_write = write_back;
  options->keep_waiting = keep_waiting;
  options->user = it;
}

static void note_error(island* it, const char* what, yeto_status status) {
  snprintf(it->error, sizeof it->error, "%s: %s: %s", what, yeto_status_name(status),
           yeto_last_error());
}

static yeto_status train(island* it, yeto_boundary* boundary, yeto_report* report) {
  int i;
  memset(report, 0, sizeof *report);
  while (!report->draining) {
    yeto_status status;
    if (it->leased) {
      yeto_rows rows;
      rows.struct_size = sizeof rows;
      status = yeto_request_rows(boundary, 1000, 4, &rows);
      if (status != YETO_OK) {
        return status;
      }
      it->rows += rows.count;
    }
    for (i = 0; i < kMatrixValues + kVectorValues; ++i) {
      it->device[i] -= 0.1f * (it->device[i] - (float)it->seat);
    }
    report->struct_size = sizeof *report;
    status = yeto_step(boundary, 10, report);
    if (status != YETO_OK) {
      return status;
    }
    ++it->steps;
    it->applied += yeto_applied_fragments(boundary, NULL, 0);
    it->pushed += yeto_pushed_fragments(boundary, NULL, 0);
  }
  it->fragments = yeto_versions(boundary, it->versions, 8);
  return YETO_OK;
}

void live(island* it) {
  yeto_tensor tensors[2];
  yeto_options options;
  yeto_boundary* boundary = NULL;
  yeto_ready ready;
  yeto_report report;
  yeto_final final;
  const char* what = "open";
  yeto_status status;
  describe(it, tensors, &options);
  status = yeto_open(&options, tensors, 2, &boundary);
  if (status == YETO_OK) {
    what = "wait_ready";
    ready.struct_size = sizeof ready;
    status = yeto_wait_ready(boundary, 60.0, &ready);
  }
  if (status == YETO_OK && (ready.seat != it->seat || yeto_fragments(boundary) != 2 ||
                            ready.data_leases != it->leased)) {
    snprintf(it->error, sizeof it->error, "wait_ready reports seat %u", (unsigned)ready.seat);
    yeto_close(boundary);
    return;
  }
  if (status == YETO_OK) {
    what = "set_phase";
    status = yeto_set_phase(boundary, YETO_PHASE_TRAIN);
  }
  if (status == YETO_OK) {
    what = "step";
    status = train(it, boundary, &report);
  }
  if (status == YETO_OK) {
    what = "metric";
    status = yeto_metric(boundary, "{\"from\":\"C\"}");
  }
  if (status == YETO_OK) {
    what = "finalize";
    it->merged = report.merged;
    final.struct_size = sizeof final;
    status = yeto_finalize(boundary, YETO_FINALIZE_DRAIN, 60.0, &final);
  }
  if (status == YETO_OK) {
    it->global_step = final.global_step;
  } else {
    note_error(it, what, status);
  }
  yeto_close(boundary);
}

int failing_callback(island* it) {
  yeto_tensor tensors[2];
  yeto_options options;
  yeto_boundary* boundary = NULL;
  yeto_status status;
  describe(it, tensors, &options);
  options.after_write = fail_write;
  status = yeto_open(&options, tensors, 2, &boundary);
  if (status == YETO_OK) {
    status = yeto_wait_ready(boundary, 60.0, NULL);
  }
  note_error(it, "wait_ready", status);
  yeto_close(boundary);
  return status;
}

int interrupted_wait(island* it) {
  yeto_tensor tensors[2];
  yeto_options options;
  yeto_boundary* boundary = NULL;
  yeto_status status;
  describe(it, tensors, &options);
  status = yeto_open(&options, tensors, 2, &boundary);
  if (status == YETO_OK) {
    status = yeto_wait_ready(boundary, 0.0, NULL);
  }
  note_error(it, "wait_ready", status);
  yeto_close(boundary);
  return status;
}

/* ---- refusals ---- */

static int expect(int line, yeto_status got, yeto_status wanted, const char* part) {
  if (got == wanted && strstr(yeto_last_error(), part) != NULL) {
    return 0;
  }
  printf("checks.c:%d: %s, expected %s with \"%s\"; the text: %s\n", line, yeto_status_name(got),
         yeto_status_name(wanted), part, yeto_last_error());
  return 1;
}

#define EXPECT(call, wanted, part) bad += expect(__LINE__, (call), (wanted), (part))

static int refused_tensors(const yeto_options* options, const yeto_tensor* good) {
  int bad = 0;
  yeto_boundary* out = NULL;
  yeto_tensor wrong[2];
  memcpy(wrong, good, sizeof wrong);
  wrong[1].dtype = (yeto_dtype)3;
  EXPECT(yeto_open(options, wrong, 2, &out), YETO_ERROR_TENSOR, "tensor vector: dtype 3");
  wrong[1] = good[1];
  wrong[1].name = "matrix";
  EXPECT(yeto_open(options, wrong, 2, &out), YETO_ERROR_TENSOR, "two tensors are named matrix");
  wrong[1] = good[1];
  wrong[1].shape = NULL;
  EXPECT(yeto_open(options, wrong, 2, &out), YETO_ERROR_TENSOR, "its shape is NULL");
  wrong[1] = good[1];
  wrong[1].data = NULL;
  EXPECT(yeto_open(options, wrong, 2, &out), YETO_ERROR_TENSOR, "its data is NULL");
  wrong[1].data = (char*)good[1].data + 1;
  EXPECT(yeto_open(options, wrong, 2, &out), YETO_ERROR_TENSOR, "aligned");
  EXPECT(yeto_open(options, NULL, 2, &out), YETO_ERROR_USAGE, "tensors are NULL");
  EXPECT(yeto_open(options, good, 0, &out), YETO_ERROR_TENSOR, "no trainable tensor");
  return bad;
}

static int refused_options(const yeto_options* good, const yeto_tensor* tensors) {
  int bad = 0;
  yeto_boundary* out = NULL;
  yeto_options wrong = *good;
  EXPECT(yeto_open(NULL, tensors, 2, &out), YETO_ERROR_USAGE, "options are NULL");
  EXPECT(yeto_open(good, tensors, 2, NULL), YETO_ERROR_USAGE, "out is NULL");
  wrong.struct_size = 8;
  EXPECT(yeto_open(&wrong, tensors, 2, &out), YETO_ERROR_USAGE, "yeto_options_init");
  wrong = *good;
  wrong.syncer = "somewhere";
  EXPECT(yeto_open(&wrong, tensors, 2, &out), YETO_ERROR_USAGE, "somewhere");
  wrong = *good;
  wrong.run_id = NULL;
  EXPECT(yeto_open(&wrong, tensors, 2, &out), YETO_ERROR_RANGE, "run id");
  wrong = *good;
  wrong.seat = -2;
  EXPECT(yeto_open(&wrong, tensors, 2, &out), YETO_ERROR_RANGE, "seat -2");
  wrong = *good;
  wrong.streams = 65;
  EXPECT(yeto_open(&wrong, tensors, 2, &out), YETO_ERROR_RANGE, "65 data streams");
  wrong = *good;
  wrong.max_alone_s = -1.0;
  EXPECT(yeto_open(&wrong, tensors, 2, &out), YETO_ERROR_RANGE, "max_alone_s");
  wrong = *good;
  wrong.token_file = "no such file";
  EXPECT(yeto_open(&wrong, tensors, 2, &out), YETO_ERROR_NOT_FOUND, "no such file");
  wrong = *good;
  wrong.token_file = NULL;
  EXPECT(yeto_open(&wrong, tensors, 2, &out), YETO_ERROR_USAGE, "token file");
  wrong = *good;
  wrong.tls_cert = "cert.pem";
  EXPECT(yeto_open(&wrong, tensors, 2, &out), YETO_ERROR_USAGE, "three files");
  wrong = *good;
  wrong.contract_count = 1;
  EXPECT(yeto_open(&wrong, tensors, 2, &out), YETO_ERROR_USAGE, "contract is NULL");
  if (out != NULL) {
    printf("checks.c:%d: a refused open gave a handle\n", __LINE__);
    ++bad;
  }
  return bad;
}

static int refused_calls(const yeto_options* options, const yeto_tensor* tensors) {
  int bad = 0;
  yeto_boundary* boundary = NULL;
  yeto_report report;
  yeto_rows rows;
  EXPECT(yeto_step(NULL, 1, NULL), YETO_ERROR_USAGE, "boundary is NULL");
  EXPECT(yeto_metric(NULL, "{}"), YETO_ERROR_USAGE, "boundary is NULL");
  EXPECT(yeto_open(options, tensors, 2, &boundary), YETO_OK, "");
  report.struct_size = 4;
  EXPECT(yeto_step(boundary, 1, &report), YETO_ERROR_USAGE, "struct_size is 4");
  report.struct_size = sizeof report;
  EXPECT(yeto_step(boundary, 1, &report), YETO_OK, "");
  if (report.connected || report.draining || report.applied != 0) {
    printf("checks.c:%d: a report without a syncer\n", __LINE__);
    ++bad;
  }
  EXPECT(yeto_metric(boundary, "no JSON"), YETO_ERROR_DATA, "JSON");
  EXPECT(yeto_metric(boundary, NULL), YETO_ERROR_USAGE, "json is NULL");
  EXPECT(yeto_set_phase(boundary, (yeto_phase)9), YETO_ERROR_RANGE, "phase 9");
  EXPECT(yeto_leave(boundary, (yeto_leave_reason)9), YETO_ERROR_RANGE, "leave reason 9");
  EXPECT(yeto_finalize(boundary, (yeto_finalize_reason)9, 0.0, NULL), YETO_ERROR_RANGE,
         "finalize reason 9");
  EXPECT(yeto_wait_ready(boundary, -1.0, NULL), YETO_ERROR_RANGE, "timeout_s");
  EXPECT(yeto_wait_ready(boundary, 0.05, NULL), YETO_ERROR_TIMEOUT, "not done in time");
  rows.struct_size = sizeof rows;
  EXPECT(yeto_request_rows(boundary, 10, 0, &rows), YETO_ERROR_RANGE, "0 of 10 rows");
  EXPECT(yeto_request_rows(boundary, 10, 2, &rows), YETO_ERROR_USAGE, "before wait_ready");
  EXPECT(yeto_leave(boundary, YETO_LEAVE_DONE), YETO_OK, "");
  EXPECT(yeto_step(boundary, 1, NULL), YETO_ERROR_CLOSED, "left or closed");
  yeto_close(boundary);
  yeto_close(NULL);
  return bad;
}

static int static_rows(void) {
  int bad = 0;
  yeto_rows rows;
  rows.struct_size = sizeof rows;
  EXPECT(yeto_static_rows(10, 1, 3, 1, 0, 2, &rows), YETO_OK, "");
  if (rows.epoch != 0 || rows.first != 1 || rows.count != 2 || rows.stride != 3) {
    printf("checks.c:%d: the first rows of seat 1\n", __LINE__);
    ++bad;
  }
  EXPECT(yeto_static_rows(10, 1, 3, 1, 3, 2, &rows), YETO_OK, "");
  if (rows.count != 0) {
    printf("checks.c:%d: rows after the last epoch\n", __LINE__);
    ++bad;
  }
  EXPECT(yeto_static_rows(10, 3, 3, 1, 0, 2, &rows), YETO_ERROR_RANGE, "seat 3 of 3");
  return bad;
}

int refusals(const char* token_file) {
  island it;
  yeto_tensor tensors[2];
  yeto_options options;
  int bad = 0;
  memset(&it, 0, sizeof it);
  it.syncer = "@no-endpoint-here.json";
  it.run_id = "run";
  it.token_file = token_file;
  it.waiting = 1;
  describe(&it, tensors, &options);
  if (yeto_abi_version() != YETO_ABI_VERSION ||
      strcmp(yeto_status_name((yeto_status)99), "unknown") != 0) {
    printf("checks.c:%d: versions and names\n", __LINE__);
    ++bad;
  }
  return bad + refused_tensors(&options, tensors) + refused_options(&options, tensors) +
         refused_calls(&options, tensors) + static_rows();
}
