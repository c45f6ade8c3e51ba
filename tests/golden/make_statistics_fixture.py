"""Writes tests/engine/analysis/statistics_fixture.h: what numpy and scikit-learn say of some drawn numbers.

Run with a Python that has numpy and scikit-learn; the numbers are committed.
"""

import pathlib
import re

import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

TOKENS, BLOCKS, WINDOW, RESAMPLES = 240, 12, 20, 20_000


def numbers(values):
    rows = [f"{float(v):.9g}" for v in np.ravel(values)]
    return ",\n    ".join(", ".join(rows[i:i + 8]) for i in range(0, len(rows), 8))


def array(kind, name, values):
    return f"inline constexpr {kind} {name}[] = {{\n    {numbers(values)}}};\n"


def interval(values):
    return np.percentile(values, [2.5, 97.5])


def logistic_inputs():
    """The inputs and labels of logistic_fixture.h."""
    text = pathlib.Path(__file__).parent.parent.joinpath("engine/analysis/logistic_fixture.h").read_text()
    body = {name: re.search(name + r"\[\] = \{(.*?)\}", text, re.S).group(1) for name in ("FixtureX", "FixtureLabels")}
    x, labels = (np.array([float(v) for v in body[name].split(",")]) for name in ("FixtureX", "FixtureLabels"))
    return x.astype(np.float32).reshape(len(labels), -1).astype(np.float64), labels.astype(int)


def main():
    random = np.random.default_rng(12)
    blocks = np.repeat(np.arange(BLOCKS), WINDOW)
    labels = random.integers(0, 2, TOKENS)
    mood = random.normal(size=BLOCKS)[blocks]  # tokens of a block depend on each other
    scores = np.round(0.6 * labels + 0.5 * mood + random.normal(size=TOKENS), 1)
    base = np.round(0.2 * labels + random.normal(size=TOKENS), 1)
    full = random.gamma(2, 1.5, TOKENS)
    other = full + 0.03 + 0.05 * mood + 0.2 * random.normal(size=TOKENS)

    draws = [np.bincount(random.integers(0, BLOCKS, BLOCKS), minlength=BLOCKS) for _ in range(RESAMPLES)]
    changes = (other - full).reshape(BLOCKS, WINDOW).mean(1)
    auc, difference = [], []
    for counts in draws[:4000]:
        weight = counts[blocks]
        auc.append(roc_auc_score(labels, scores, sample_weight=weight))
        difference.append(auc[-1] - roc_auc_score(labels, base, sample_weight=weight))

    x, gate_labels = logistic_inputs()
    regression = LogisticRegression(C=1.0, tol=1e-12, max_iter=100_000)
    gate = make_pipeline(StandardScaler(), PCA(2, svd_solver="full"), StandardScaler(), regression)
    p = gate.fit(x, gate_labels).predict_proba(x)[:, 1]

    header = f"""// Written by tests/golden/make_statistics_fixture.py with numpy and scikit-learn; do not edit.
#ifndef GATEHOUSE_TESTS_ENGINE_ANALYSIS_STATISTICS_FIXTURE_H_
#define GATEHOUSE_TESTS_ENGINE_ANALYSIS_STATISTICS_FIXTURE_H_

#include <cstdint>

namespace gatehouse {{

// Tokens lie block after block.
inline constexpr int kStatisticsTokens = {TOKENS}, kStatisticsBlocks = {BLOCKS}, kStatisticsWindow = {WINDOW};
{array("double", "kScores", scores)}{array("double", "kBaseScores", base)}{array("uint8_t", "kLabels", labels)}
{array("double", "kFullCe", full)}{array("double", "kOtherCe", other)}
inline constexpr double kAuc = {roc_auc_score(labels, scores):.9g}, kBaseAuc = {roc_auc_score(labels, base):.9g};
inline constexpr double kPearson = {np.corrcoef(scores, base)[0, 1]:.9g};
// Intervals from resamples of numpy's.
{array("double", "kAucInterval", interval(auc))}{array("double", "kDifferenceInterval", interval(difference))}
inline constexpr double kChange = {np.expm1((other - full).mean()):.9g};
{array("double", "kChangeInterval", interval(np.expm1([c @ changes / BLOCKS for c in draws])))}
// p of a logistic regression behind PCA(2) on the inputs of logistic_fixture.h.
{array("double", "kBottleneckP", p)}
}}  // namespace gatehouse

#endif  // GATEHOUSE_TESTS_ENGINE_ANALYSIS_STATISTICS_FIXTURE_H_
"""
    target = pathlib.Path(__file__).parent.parent.joinpath("engine/analysis/statistics_fixture.h")
    target.write_text(re.sub(r"\n{3,}", "\n\n", header))


if __name__ == "__main__":
    main()
