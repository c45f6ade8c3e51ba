"""Writes tests/engine/analysis/logistic_fixture.h: a small logistic regression solved by scikit-learn.

Run with a Python that has numpy and scikit-learn; the numbers are committed.
"""

import pathlib

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

ROWS, COLUMNS = 40, 4


def numbers(values):
    rows = [f"{float(v):.9g}" for v in np.ravel(values)]
    rows = [r if any(c in r for c in ".en") else r + ".0" for r in rows]
    return ",\n    ".join(", ".join(rows[i:i + 8]) for i in range(0, len(rows), 8))


def main():
    random = np.random.default_rng(11)
    x = (random.normal(size=(ROWS, COLUMNS)) * [1, 5, 0.2, 2] + [0, 10, -1, 3]).astype(np.float32)
    labels = (x[:, 0] + 0.3 * (x[:, 1] - 10) + random.normal(size=ROWS) > 0.2).astype(int)
    scaler = StandardScaler().fit(x.astype(np.float64))
    fit = LogisticRegression(C=1.0, tol=1e-12, max_iter=100_000).fit(scaler.transform(x.astype(np.float64)), labels)
    weight = fit.coef_[0] / scaler.scale_
    bias = fit.intercept_[0] - weight @ scaler.mean_
    header = f"""// Written by tests/golden/make_logistic_fixture.py with scikit-learn; do not edit.
#ifndef GATEHOUSE_TESTS_ENGINE_ANALYSIS_LOGISTIC_FIXTURE_H_
#define GATEHOUSE_TESTS_ENGINE_ANALYSIS_LOGISTIC_FIXTURE_H_

#include <cstdint>

namespace gatehouse {{

inline constexpr int kFixtureRows = {ROWS}, kFixtureColumns = {COLUMNS};
inline constexpr float kFixtureX[] = {{
    {numbers(x)}}};
inline constexpr uint8_t kFixtureLabels[] = {{
    {", ".join(map(str, labels))}}};
// Of LogisticRegression(C=1) on StandardScaler's inputs, for inputs as they are.
inline constexpr double kFixtureWeight[] = {{{numbers(weight)}}};
inline constexpr double kFixtureBias = {bias:.9g};

}}  // namespace gatehouse

#endif  // GATEHOUSE_TESTS_ENGINE_ANALYSIS_LOGISTIC_FIXTURE_H_
"""
    pathlib.Path(__file__).parent.parent.joinpath("engine/analysis/logistic_fixture.h").write_text(header)


if __name__ == "__main__":
    main()
