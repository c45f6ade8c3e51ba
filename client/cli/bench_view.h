#ifndef GATEHOUSE_CLIENT_CLI_BENCH_VIEW_H_
#define GATEHOUSE_CLIENT_CLI_BENCH_VIEW_H_

#include "client/cli/json.h"
#include "client/cli/terminal.h"
#include "client/load/figures.h"
#include "client/load/load_run.h"
#include "gatehouse/v1/reports.pb.h"

namespace gatehouse::cli {

// What a load measured, as the field `bench` of its JSON.
Json BenchJson(const client::LoadResult& result, const client::LoadFigures& figures);

// The same for a reader, with the summary and notes of its report.
void PrintBench(const Terminal& terminal, const v1::Report& report, const client::LoadResult& result,
                const client::LoadFigures& figures, bool open_loop);

}  // namespace gatehouse::cli

#endif  // GATEHOUSE_CLIENT_CLI_BENCH_VIEW_H_
