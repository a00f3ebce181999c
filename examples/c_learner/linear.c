/* SPDX-License-Identifier: Apache-2.0
 *
 * A small learner in C: linear regression by stochastic gradient descent. Two of these and a
 * `yeto syncer` fit one model together; see README.md.
 *
 * Row i is made from i alone, so no data file is needed: x are 16 numbers, y = w·x + b + noise with
 * a hidden w and b. Each learner trains on its share of the rows, by data leases if the syncer
 * hands rows out, else by a static split.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yeto.h>

enum { kFeatures = 16, kRows = 4096, kBatch = 8, kHeldOut = 512 };

typedef struct arguments {
  const char* syncer;
  const char* run_id;
  const char* token_file;
  long seat;
  long seats;
  long steps; /* 0: until the run drains */
} arguments;

typedef struct model {
  float weight[kFeatures];
  float bias[1];
} model;

/* ---- data: numbers that depend on (seed, index) only ---- */

static uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* Uniform in [-1, 1). */
static float uniform(uint64_t seed, uint64_t index) {
  return (float)((double)(mix(seed * 0x10001u + index) >> 11) * 0x1.0p-52 - 1.0);
}

static float make_row(uint64_t row, float* x) {
  float y = 0.5f; /* the hidden bias */
  int i;
  for (i = 0; i < kFeatures; ++i) {
    x[i] = uniform(row + 2, (uint64_t)i);
    y += uniform(1, (uint64_t)i) * x[i]; /* the hidden weights */
  }
  return y + 0.01f * uniform(row + 2, kFeatures);
}

static float predict(const model* m, const float* x) {
  float sum = m->bias[0];
  int i;
  for (i = 0; i < kFeatures; ++i) {
    sum += m->weight[i] * x[i];
  }
  return sum;
}

/* Mean squared error on rows that nobody trains on. */
static double held_out_loss(const model* m) {
  double sum = 0.0;
  float x[kFeatures];
  uint64_t row;
  for (row = 0; row < kHeldOut; ++row) {
    const float y = make_row(kRows + row, x);
    const double error = (double)predict(m, x) - (double)y;
    sum += error * error;
  }
  return sum / kHeldOut;
}

static void sgd_step(model* m, const yeto_rows* rows) {
  const float lr = 0.05f;
  model gradient;
  float x[kFeatures];
  uint64_t k;
  int i;
  memset(&gradient, 0, sizeof gradient);
  for (k = 0; k < rows->count; ++k) {
    const float y = make_row(rows->first + k * rows->stride, x);
    const float error = predict(m, x) - y;
    for (i = 0; i < kFeatures; ++i) {
      gradient.weight[i] += error * x[i];
    }
    gradient.bias[0] += error;
  }
  for (i = 0; i < kFeatures; ++i) {
    m->weight[i] -= lr * gradient.weight[i] / (float)rows->count;
  }
  m->bias[0] -= lr * gradient.bias[0] / (float)rows->count;
}

/* ---- the run ---- */

static int failed(const char* what, yeto_status status) {
  fprintf(stderr, "%s: %s\n%s\n", what, yeto_status_name(status), yeto_last_error());
  return 1;
}

static yeto_status next_rows(yeto_boundary* boundary, const arguments* a, const yeto_ready* ready,
                             uint64_t* done, yeto_rows* rows) {
  yeto_status status;
  if (ready->data_leases) {
    return yeto_request_rows(boundary, kRows, kBatch, rows);
  }
  status = yeto_static_rows(kRows, ready->seat % (uint32_t)a->seats, (uint32_t)a->seats, 0, *done,
                            kBatch, rows);
  *done += rows->count;
  return status;
}

/* Steps until the run drains, the rows are used up or the limit is reached. */
static yeto_status train(yeto_boundary* boundary, const arguments* a, const yeto_ready* ready,
                         model* m, yeto_report* report) {
  uint64_t done = 0;
  long step;
  yeto_rows rows;
  memset(&rows, 0, sizeof rows);
  rows.struct_size = sizeof rows;
  for (step = 0; a->steps == 0 || step < a->steps; ++step) {
    yeto_status status = next_rows(boundary, a, ready, &done, &rows);
    if (status != YETO_OK || rows.count == 0) {
      return status;
    }
    sgd_step(m, &rows);
    status = yeto_step(boundary, rows.count, report);
    if (status != YETO_OK || report->draining) {
      return status;
    }
  }
  return YETO_OK;
}

static int run(const arguments* a) {
  static const uint64_t kWeightShape[1] = {kFeatures};
  static const uint64_t kBiasShape[1] = {1};
  model m;
  yeto_tensor tensors[2];
  yeto_options options;
  yeto_boundary* boundary = NULL;
  yeto_ready ready;
  yeto_report report;
  yeto_final final;
  yeto_status status;
  double before;

  memset(&m, 0, sizeof m);
  memset(&report, 0, sizeof report);
  tensors[0].name = "linear.weight";
  tensors[0].dtype = YETO_F32;
  tensors[0].shape = kWeightShape;
  tensors[0].ndim = 1;
  tensors[0].data = m.weight;
  tensors[1] = tensors[0];
  tensors[1].name = "linear.bias";
  tensors[1].shape = kBiasShape;
  tensors[1].data = m.bias;

  yeto_options_init(&options);
  options.syncer = a->syncer;
  options.run_id = a->run_id;
  options.token_file = a->token_file;
  options.seat = a->seat;
  options.fragments = 2;
  options.device_text = "cpu";
  status = yeto_open(&options, tensors, 2, &boundary);
  if (status != YETO_OK) {
    return failed("open", status);
  }
  ready.struct_size = sizeof ready;
  status = yeto_wait_ready(boundary, 0.0, &ready);
  before = held_out_loss(&m);
  report.struct_size = sizeof report;
  if (status == YETO_OK) {
    status = train(boundary, a, &ready, &m, &report);
  }
  final.struct_size = sizeof final;
  if (status == YETO_OK) {
    status = yeto_finalize(boundary, report.draining ? YETO_FINALIZE_DRAIN : YETO_FINALIZE_LIMIT,
                           0.0, &final);
  }
  if (status != YETO_OK) {
    const int code = failed("the run", status);
    yeto_leave(boundary, YETO_LEAVE_ERROR);
    yeto_close(boundary);
    return code;
  }
  yeto_close(boundary);
  printf("seat %u global_step %lu loss_before %.6f loss_after %.6f bias %.9g weight0 %.9g\n",
         (unsigned)ready.seat, (unsigned long) final.global_step, before, held_out_loss(&m),
         (double)m.bias[0], (double)m.weight[0]);
  return 0;
}

static int usage(FILE* to) {
  fputs(
      "usage: c_learner --syncer HOST:PORT|@endpoint.json --run-id ID --token-file FILE\n"
      "                 --seat N --seats N [--steps N]\n"
      "       c_learner --version\n",
      to);
  return to == stderr ? 64 : 0;
}

static int number(const char* text, long* out) {
  char* end = NULL;
  *out = strtol(text, &end, 10);
  return *text != '\0' && *end == '\0' && *out >= 0;
}

int main(int argc, char** argv) {
  arguments a = {NULL, NULL, NULL, 0, 1, 0};
  int i;
  if (argc == 2 && strcmp(argv[1], "--version") == 0) {
    printf("yeto %s\n", yeto_version());
    return 0;
  }
  for (i = 1; i + 1 < argc; i += 2) {
    const char* name = argv[i];
    const char* value = argv[i + 1];
    int good = 1;
    if (strcmp(name, "--syncer") == 0) {
      a.syncer = value;
    } else if (strcmp(name, "--run-id") == 0) {
      a.run_id = value;
    } else if (strcmp(name, "--token-file") == 0) {
      a.token_file = value;
    } else if (strcmp(name, "--seat") == 0) {
      good = number(value, &a.seat);
    } else if (strcmp(name, "--seats") == 0) {
      good = number(value, &a.seats) && a.seats > 0;
    } else if (strcmp(name, "--steps") == 0) {
      good = number(value, &a.steps);
    } else {
      good = 0;
    }
    if (!good) {
      fprintf(stderr, "c_learner: %s %s is not understood\n", name, value);
      return usage(stderr);
    }
  }
  if (i != argc || a.syncer == NULL || a.run_id == NULL || a.token_file == NULL) {
    return usage(stderr);
  }
  return run(&a);
}
