// render_report REPORT.json PAGE.html: makes the page of a report, for the test in a
// browser and for looking at.
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "client/page/report_page.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: render_report REPORT.json PAGE.html\n";
    return 2;
  }
  std::ifstream in(argv[1], std::ios::binary);
  const std::string json((std::istreambuf_iterator<char>(in)), {});
  std::ofstream out(argv[2], std::ios::binary);
  out << gatehouse::client::RenderReportPage(json);
  out.close();
  if (!in || !out) {
    std::cerr << "cannot read " << argv[1] << " or write " << argv[2] << "\n";
    return 1;
  }
}
