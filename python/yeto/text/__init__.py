# SPDX-License-Identifier: Apache-2.0
"""Rows, chat templates, loss masks and sample order. Needs a tokenizer, never a model."""
