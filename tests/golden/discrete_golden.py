#!/usr/bin/env python3
"""Recomputes the experiments of "The Discrete Charm of the MLP" with transformers, numpy and scikit-learn.

  discrete_golden.py --probe build/release/tests/experiment_probe --model models/novella-gpt2-7m

Same tokens, same blocks, nothing else shared.  Scores and percentiles agree to 1e-4 of their size, R² to 1e-3,
counts exactly.  Exits with 77 (skipped) where a package is absent.
"""
import experiments_golden as experiments  # skips where a package is absent

import numpy as np
import torch
import transformers

from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge
from sklearn.metrics import silhouette_score
from sklearn.preprocessing import StandardScaler

import calibration_golden as golden

COMPONENTS = 8
array, rows = experiments.array, experiments.rows


def residual(text, layer):
    """Of the held-out tokens: x, y, δ [blocks, window, d] float64, and which are no sinks."""
    without, _, limit = text.fit(layer)
    x, y, _ = (a.astype(np.float64) for a in text.seen["held"][layer])
    return x, y, y - (x @ without[0].T + without[1]), golden.kept(y, limit), without[2]


def check_nonlinearity(checks, reference, texts, layers, result):
    text = texts[0]
    reference.cross_entropy(text.ids["held"])
    for index, layer in enumerate(layers):
        x, y, delta, kept, y_mean = residual(text, layer)
        scores, norms = np.linalg.norm(delta, axis=-1), np.linalg.norm(y, axis=-1)
        theirs = array(result, "score.1")[index]
        checks.near(f"layer {layer} kept tokens that differ", (array(result, "kept.1")[index] != kept).sum(), 0, 0)
        checks.near(f"layer {layer} largest relative difference of scores",
                    np.abs(theirs / scores - 1)[kept].max(), 0, 1e-4)
        row = rows(result["tables"]["layers"], layer=layer)[0]
        flat, relative = scores[kept], (scores / norms)[kept]
        for q in (25, 50, 70, 95):
            for name, values in ((f"p{q}", flat), (f"relative_p{q}", relative)):
                expected = np.percentile(values, q)
                checks.near(f"layer {layer} {name}", row[name], expected, 1e-4 * expected)
        r2 = 1 - np.sum(delta[kept] ** 2) / np.sum((y[kept] - y_mean) ** 2)
        checks.near(f"layer {layer} R2", row["r2"], r2, 1e-3)
        p25, p50, p70, p95 = np.percentile(flat, (25, 50, 70, 95))
        middle = (flat >= p50) & (flat <= p70)
        regimes = {"linear": flat < p25, "barely": middle, "high": flat > p95}
        regimes["between"] = ~(regimes["linear"] | middle | regimes["high"])
        for name, mask in regimes.items():
            found = rows(result["tables"]["regimes"], layer=layer, regime=name)[0]
            checks.near(f"layer {layer} {name} tokens", found["tokens"], mask.sum(), 0)
            for key, values in (("score", flat), ("relative", relative), ("norm", norms[kept])):
                checks.near(f"layer {layer} {name} {key}", found[key], values[mask].mean(), 1e-4 * values[mask].mean())
            share = np.sum(flat[mask] ** 2) / np.sum(flat ** 2)
            checks.near(f"layer {layer} {name} share of the residual", found["residual_share"], share, 1e-4)
        check_clusters(checks, reference, layer, array(result, "cluster.1")[index], kept & (scores > p95),
                       rows(result["tables"]["structure"], layer=layer)[0])


def check_clusters(checks, reference, layer, ours, high, row):
    checks.near(f"layer {layer} clustered tokens that differ", ((ours >= 0) != high).sum(), 0, 0)
    fired = reference.fired[layer].reshape(*high.shape, -1).numpy()[high].astype(np.float64)
    patterns = fired / np.linalg.norm(fired, axis=1, keepdims=True)
    pca = PCA(32, svd_solver="full").fit(patterns)
    points, labels = pca.transform(patterns), ours[high].astype(int)
    checks.near(f"layer {layer} variance in the components", row["variance"], pca.explained_variance_ratio_.sum(), 1e-4)
    checks.near(f"layer {layer} silhouette", row["silhouette"], silhouette_score(points, labels), 1e-3)
    centres = np.stack([points[labels == c].mean(0) for c in range(labels.max() + 1)])
    explained = 1 - np.sum((points - centres[labels]) ** 2) / np.sum(points ** 2)
    checks.near(f"layer {layer} share between clusters", row["explained"], explained, 1e-4)
    best = 1 - KMeans(labels.max() + 1, n_init=20, random_state=0).fit(points).inertia_ / np.sum(points ** 2)
    checks.near(f"layer {layer} clusters less tight than scikit-learn's best", max(0, best - row["explained"]), 0, 0.05)


def features(z, train, degree, products):
    columns = []
    for i in range(z.shape[1]):
        powers = np.vander(z[:, i], degree + 1, increasing=True)
        # Orthonormal over the training tokens.
        columns.append(powers @ np.linalg.inv(np.linalg.qr(powers[train], mode="r"))[:, 1:])
    columns = [np.concatenate(columns, axis=1)]
    if products and degree >= 2:
        columns.append(np.stack([z[:, i] * z[:, j] for i in range(z.shape[1]) for j in range(i + 1, z.shape[1])], axis=1))
    return np.concatenate(columns, axis=1)


def check_polynomial(checks, reference, texts, layers, result):
    text = texts[0]
    part, bits = array(result, "part.1").astype(int), array(result, "probed.1").astype(int)
    ids = text.ids["held"].numpy()
    newline = np.isin(ids, [i for i in np.unique(ids) if reference.tokenizer.decode([i]).strip("\r\n") == ""])
    for index, layer in enumerate(layers):
        x, _, delta, kept, _ = residual(text, layer)
        scores = np.linalg.norm(delta, axis=-1)
        for bit, name, eligible in ((1, "all", kept), (2, "without newlines", kept & ~newline)):
            if bit == 2 and not (kept & newline).any():
                continue
            count = int(0.1 * eligible.sum())
            high = eligible & (scores >= np.sort(scores[eligible])[-count])
            checks.near(f"layer {layer} {name}: probed tokens that differ", ((bits[index] & bit > 0) != high).sum(), 0, 0)
            of = np.broadcast_to(part[:, None], high.shape)[high]
            compare_probe(checks, f"layer {layer} {name}", x[high], delta[high], of,
                          {table: rows(result["tables"][table], layer=layer, tokens=name)
                           for table in ("powers", "products")})


def compare_probe(checks, name, x, delta, of, tables):
    train, tune, test = of < 2, of == 1, of == 2
    pca = PCA(COMPONENTS, svd_solver="full").fit(StandardScaler().fit(x[train]).transform(x[train]))
    z = pca.transform(StandardScaler().fit(x[train]).transform(x))
    z /= z[train].std(0)

    def r2(degree, products, ridge, fitted, judged):
        f = features(z, train, degree, products)
        scaler = StandardScaler().fit(f[fitted])
        model = Ridge(alpha=ridge, solver="cholesky").fit(scaler.transform(f[fitted]), delta[fitted])
        error = np.sum((delta[judged] - model.predict(scaler.transform(f[judged]))) ** 2)
        return 1 - error / np.sum((delta[judged] - delta[train].mean(0)) ** 2)

    for table, found in tables.items():
        for row in found:
            degree, products = int(row["degree"]), table == "products"
            expected = r2(degree, products, 1, train, test)
            checks.near(f"{name} {table} degree {degree} R2", row["r2"], expected, 1e-3 * max(1, abs(expected)))
            expected = r2(degree, products, 1, train, train)
            checks.near(f"{name} {table} degree {degree} R2 of training", row["r2_train"], expected, 1e-3)
            tried = {m: r2(degree, products, m, of == 0, tune) for m in (1, 30, 1e3, 3e4)}
            checks.near(f"{name} {table} degree {degree} tuned ridge, less R2 than the best", tried[row["tuned"]],
                        max(tried.values()), 1e-3)
            expected = r2(degree, products, row["tuned"], train, test)
            checks.near(f"{name} {table} degree {degree} tuned R2", row["tuned_r2"], expected,
                        1e-3 * max(1, abs(expected)))


CHECKS = {"nonlinearity": check_nonlinearity, "polynomial_probe": check_polynomial}

if __name__ == "__main__":
    experiments.main(CHECKS, __doc__, ["--components", str(COMPONENTS), "--clusters", "3"])
