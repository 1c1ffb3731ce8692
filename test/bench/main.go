// Command bench measures what docs/benchmarks.md shows: what Kubeqemu adds to
// QEMU and to Kubernetes, in time and memory, beside bare QEMU, libvirt and
// plain pods in the same run. `make bench` builds what it needs.
//
// The rows of the report are data (rows.go). A group of rows is measured by a run (run.go), in rounds
// and turns, which adds samples to the rows.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// bench is all that is measured by one command.
type bench struct {
	repository  string
	work        string // raw results and intermediate files
	qemu        string // a script that runs the QEMU of the launcher's image
	rounds      int
	accelerator qemuargs.Accelerator
	cluster     string
	keep        bool
	started     time.Time
	earlier     result // of a run that this one goes on with
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := execute(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// execute does what the flags say.
func execute(ctx context.Context) error {
	ctrl.SetLogger(logr.Discard()) // a client of a cluster that is being taken down has much to say
	b := &bench{started: time.Now()}
	var only, accelerator string
	var write, goOn bool
	flag.IntVar(&b.rounds, "rounds", 9, "`rounds` of everything that is timed")
	flag.StringVar(&accelerator, "accelerator", "tcg", "`kvm or tcg`, of QEMU outside of the cluster")
	flag.StringVar(&b.cluster, "cluster", "bench", "`name` of the cluster, which is made and taken down")
	flag.StringVar(&only, "only", "", "measure only these groups, comma-separated: "+groupNames())
	flag.BoolVar(&write, "write", true, "write docs/benchmarks.md, docs/benchmarks.svg and the README's section; "+
		"never where a group was left out")
	flag.BoolVar(&goOn, "continue", false, "go on with the run that wrote _output/bench/result.json: "+
		"measure only what it has not measured")
	flag.BoolVar(&b.keep, "keep", false, "use the cluster if it is up, and leave it up")
	flag.Parse()
	b.accelerator = qemuargs.Accelerator(accelerator)
	if b.rounds < 1 || flag.NArg() > 0 || accelerators[b.accelerator] == "" {
		return errors.New("usage: bench [FLAGS]; see --help")
	}
	chosen, err := choose(only)
	if err != nil {
		return err
	}
	if err := b.prepare(); err != nil {
		return err
	}
	r := result{Facts: b.facts(ctx)}
	if goOn {
		if err := b.goOn(&r); err != nil {
			return err
		}
	}
	failed := b.measure(ctx, chosen, &r)
	if ctx.Err() != nil {
		return errors.Join(errors.New("interrupted: --continue goes on with what was measured"), failed)
	}
	return errors.Join(b.report(r, write && only == ""), failed)
}

// goOn takes the facts and rows of the earlier run.
func (b *bench) goOn(r *result) error {
	var err error
	if b.earlier, err = readEarlier(b.resultFile()); err != nil {
		return err
	}
	if len(b.earlier.Rows) == 0 {
		return fmt.Errorf("--continue: no earlier run left %s", b.resultFile())
	}
	if name := b.earlier.differs(r.Facts); name != "" {
		return fmt.Errorf("--continue: %s is of an earlier run with another %q; run the bench without --continue",
			b.resultFile(), name)
	}
	r.Facts = b.earlier.Facts
	return nil
}

func groupNames() string {
	var names []string
	for _, g := range groups() {
		names = append(names, g.name)
	}
	return strings.Join(names, ",")
}

func choose(only string) ([]group, error) {
	all := groups()
	if only == "" {
		return all, nil
	}
	var chosen []group
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(all, func(g group) bool { return g.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no group %q; there are %s", name, groupNames())
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// prepare finds the repository, whose root is the working directory, and what
// was built there.
func (b *bench) prepare() error {
	var err error
	if b.repository, err = os.Getwd(); err != nil {
		return err
	}
	for _, needed := range []string{"test/bench", "_output/bin/virt-launcher", "_output/bin/cluster",
		"_output/bin/kubectl", "_output/bin/virt-components", "_output/cache/launcher-root"} {
		if _, err := os.Stat(filepath.Join(b.repository, needed)); err != nil {
			return fmt.Errorf("find what the bench needs (run it by `make bench`): %w", err)
		}
	}
	b.work = b.output("bench")
	b.qemu = filepath.Join(b.work, "qemu-system-x86_64")
	return errors.Join(
		os.MkdirAll(b.work, 0o755),
		writeQEMU(b.qemu, b.output("cache", "launcher-root")),
		os.Setenv("PATH", b.output("bin")+":"+os.Getenv("PATH")),
		os.Setenv("KUBECONFIG", b.output("cluster", b.cluster, "kubeconfig")))
}

func (b *bench) output(elem ...string) string {
	return filepath.Join(append([]string{b.repository, "_output"}, elem...)...)
}

func (b *bench) say(format string, args ...any) {
	fmt.Printf("bench: [%3.0fs] %s\n", time.Since(b.started).Seconds(), fmt.Sprintf(format, args...))
}

// measure goes on after a group that fails: that group's rows hold the error. The rows are
// in a file after each group, for --continue.
func (b *bench) measure(ctx context.Context, chosen []group, r *result) (failed error) {
	left := func(g group) bool { return b.earlier.measured(g.name) == nil }
	if slices.ContainsFunc(chosen, func(g group) bool { return g.cluster && left(g) }) {
		defer func() { failed = errors.Join(failed, b.clusterDown()) }()
	}
	var cluster error // of bringing the cluster up
	tried := false
	for _, g := range chosen {
		if ctx.Err() != nil {
			break
		}
		if !left(g) {
			b.say("measured by the earlier run: %s", g.name)
			r.Rows = append(r.Rows, b.earlier.measured(g.name)...)
			failed = errors.Join(failed, b.save(*r))
			continue
		}
		if g.cluster && !tried {
			tried, cluster = true, b.clusterUp(ctx)
		}
		got, err := b.measureGroup(ctx, g, cluster)
		r.Rows = append(r.Rows, got...)
		failed = errors.Join(failed, err, b.save(*r))
	}
	return failed
}

// measureGroup measures a group, unless the cluster, which it may need, failed. The rows that were not measured
// get the error.
func (b *bench) measureGroup(ctx context.Context, g group, cluster error) ([]row, error) {
	b.say("measuring: %s", g.name)
	var err error
	if g.cluster {
		err = cluster
	}
	if err == nil {
		err = (&run{bench: b, Context: ctx, rows: g.rows}).try(g.measure)
	}
	if i := slices.IndexFunc(g.rows, func(r row) bool { return len(r.Ours.Samples) == 0 }); i >= 0 && err == nil {
		err = fmt.Errorf("row %s has no sample", g.rows[i].ID)
	}
	if err != nil {
		err = fmt.Errorf("measure %s: %w", g.name, err)
		b.say("FAILED: %v", err)
	}
	for i := range g.rows {
		g.rows[i].Group = g.name
		if err != nil && g.rows[i].verdict() == unmeasured {
			g.rows[i].Failure = err.Error()
		}
	}
	return g.rows, err
}
