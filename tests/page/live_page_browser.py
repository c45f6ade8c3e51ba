#!/usr/bin/env python3
"""Opens the live page of a real gatehouse-server in a headless Chromium, and generates.

  live_page_browser.py GATEHOUSE_SERVER NAME=MODEL_DIR [TEST...]

Skipped (exit code 77) where no browser starts.
"""
import http.client
import http.server
import json
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "client"))
import report_page_browser as base  # noqa: E402

MARKUP = "<img src=x onerror=alert(1)> It was"

# Types a prompt, starts, and sends what became of it to the proxy.
GENERATE = r"""<script>
addEventListener('load', async () => {
  const one = (selector) => document.querySelector(selector);
  const answer = {before: document.querySelectorAll('.t').length, grew: []};
  try {
    one('.live textarea').value = %r;
    const [model, tokens, temperature, gating, threshold] = document.querySelectorAll('.live-fields select, .live-fields input');
    Object.assign(tokens, {value: '%d'});
    Object.assign(temperature, {value: '0'});
    gating.value = '%s';
    gating.dispatchEvent(new Event('change'));
    threshold.value = '%s';
    const watch = new MutationObserver(() => answer.grew.push(document.querySelectorAll('.t').length));
    watch.observe(one('.live'), {childList: true, subtree: true});
    one('.start').click();
    while (one('.start').disabled) await new Promise((done) => setTimeout(done, 20));
    Object.assign(answer, {
      status: one('.live-status').textContent, text: one('.trace-text')?.textContent ?? '', generated: document.querySelectorAll('.t.new').length,
      tokens: document.querySelectorAll('.t').length, shaded: document.querySelectorAll('.t[class*=q]').length, sentence: one('.routes-sentence')?.textContent ?? '',
      images: document.querySelectorAll('img').length, failed: one('.live-status').classList.contains('failure'), models: model.options.length});
  } catch (error) {
    answer.error = String(error.stack);
  }
  Object.assign(answer, {blocked: window.blocked, alerts: window.alerts, loaded: performance.getEntriesByType('resource').map((entry) => new URL(entry.name).pathname)});
  fetch('/answer', {method: 'POST', body: JSON.stringify(answer)});
});
</script>"""


class Proxy(http.server.ThreadingHTTPServer):
    """Stands before the page's server, and puts a probe into the page."""

    def __init__(self, port, probe):
        self.port, self.probe, self.answers = port, probe, queue.Queue()
        super().__init__(("127.0.0.1", 0), Forward)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Forward(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def forward(self, body=None):
        server = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        server.request(self.command, self.path, body, dict(self.headers))
        answer = server.getresponse()
        self.send_response(answer.status)
        for name in ("Content-Type", "Content-Security-Policy"):
            if answer.getheader(name):
                self.send_header(name, answer.getheader(name))
        self.end_headers()
        if answer.getheader("Content-Type").startswith("text/html"):
            self.wfile.write(base.watched(answer.read().decode(), self.server.probe).encode())
            return
        while piece := answer.read1(65536):
            self.wfile.write(piece)

    def do_GET(self):
        self.forward()

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/answer":
            return self.forward(body)
        self.server.answers.put(json.loads(body))
        self.send_response(204)
        self.end_headers()


class LivePage(base.PageTest):
    @classmethod
    def setUpClass(cls):
        cls.state = tempfile.TemporaryDirectory()
        cls.server = subprocess.Popen([SERVER, "--model", MODEL, "--state-dir", cls.state.name, "--listen", "127.0.0.1:0", "--metrics-listen",
                                       "127.0.0.1:0", "--page-listen", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        cls.port = int(re.search(r"page on http://127\.0\.0\.1:(\d+)/", cls.server.stdout.readline()).group(1))

    @classmethod
    def tearDownClass(cls):
        cls.server.terminate()
        cls.server.wait(60)
        cls.state.cleanup()

    def generate(self, prompt, tokens=6, gating="full", threshold="0.5"):
        proxy = Proxy(self.port, GENERATE % (prompt, tokens, gating, threshold))
        self.addCleanup(proxy.server_close)
        self.addCleanup(proxy.shutdown)
        # Its time is real, unlike that of the other pages, so it runs until it has answered.
        command = [self.browser, *([] if "headless-shell" in self.browser else ["--headless"]), "--no-sandbox", "--disable-gpu", "--no-first-run",
                   "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", f"--user-data-dir={self.folder}/profile", "--remote-debugging-port=0", proxy.address]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            answer = proxy.answers.get(timeout=45)
        finally:
            os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()
        self.assertNotIn("error", answer)
        return answer

    def test_grows_token_by_token_and_runs_no_markup(self):
        answer = self.generate(MARKUP)
        self.assertEqual((answer["blocked"], answer["alerts"], answer["images"], answer["failed"]), ([], 0, 0, False))
        self.assertEqual(answer["loaded"], ["/trace"])
        self.assertEqual((answer["before"], answer["generated"]), (0, 6))
        # Of the prompt's tokens and all but the last generated one something was recorded.
        self.assertEqual(answer["shaded"], answer["tokens"] - 1)
        self.assertTrue(answer["text"].startswith(MARKUP), answer["text"])
        self.assertEqual(answer["grew"][-1], answer["tokens"])
        self.assertIn("would go linear", answer["sentence"])
        self.assertIn("6 tokens generated", answer["status"])

    def test_gates_as_it_is_told(self):
        answer = self.generate("It was", gating="gated", threshold="0")
        self.assertFalse(answer["failed"], answer["status"])
        self.assertNotIn("0.0\u202f% of the decisions went linear", answer["status"])

    def test_says_what_is_wrong(self):
        answer = self.generate("It was", tokens=100000, gating="gated", threshold="1.5")
        self.assertTrue(answer["failed"] or answer["tokens"] == 0, answer)


if __name__ == "__main__":
    SERVER, MODEL = sys.argv[1:3]
    base.run_tests(sys.argv[3:])
