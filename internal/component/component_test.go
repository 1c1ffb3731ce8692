package component

import (
	"errors"
	"flag"
	"strings"
	"testing"

	"github.com/go-logr/logr"
)

func TestMainStatus(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   []string
		err    error
		status int
		runs   bool
		says   string
	}{
		{"runs", []string{"--color=red"}, nil, 0, true, `"msg":"started"`},
		{"verbose", []string{"--verbose"}, nil, 0, true, `"msg":"detail"`},
		{"fails", nil, errors.New("no API server"), 1, true, "virt-test: no API server\n"},
		{"an argument", []string{"kvm"}, nil, 2, false, `virt-test: unexpected argument "kvm"; --help lists the flags`},
		{"an unknown flag", []string{"--none"}, nil, 2, false, "flag provided but not defined: -none"},
		{"help", []string{"--help"}, nil, 0, false, "-color"},
	} {
		t.Run(c.name, func(t *testing.T) {
			flags := flag.NewFlagSet("virt-test", flag.ContinueOnError)
			flags.String("color", "", "a `color`")
			var said strings.Builder
			ran := false
			status := Main(flags, c.args, &said, func(log logr.Logger, _ *Verbosity) error {
				ran = true
				log.Info("started")
				log.V(1).Info("detail")
				return c.err
			})
			if status != c.status || ran != c.runs || !strings.Contains(said.String(), c.says) {
				t.Errorf("status %d, ran %t, said %q", status, ran, said.String())
			}
			if detail := strings.Contains(said.String(), "detail"); detail != (c.name == "verbose") {
				t.Errorf("details in the log: %t", detail)
			}
		})
	}
}

// TestVerbosity: the log follows Set, and --verbose is the least.
func TestVerbosity(t *testing.T) {
	for args, least := range map[string]int{"": 0, "--verbose": verbose} {
		var said strings.Builder
		flags := flag.NewFlagSet("virt-test", flag.ContinueOnError)
		Main(flags, strings.Fields(args), &said, func(log logr.Logger, v *Verbosity) error {
			log.WithName("early").V(5).Info("too much")
			v.Set(5)
			log.WithName("later").V(5).Info("as much")
			v.Set(0)
			log.V(least + 1).Info("too much")
			log.V(least).Info("the least")
			v.Set(1 << 30)
			log.V(maxVerbosity).Info("the most")
			return nil
		})
		for text, want := range map[string]int{"too much": 0, "as much": 1, "the least": 1, "the most": 1, "verbosity changes": 3} {
			if got := strings.Count(said.String(), text); got != want {
				t.Errorf("%q: %q is %d times in the log, want %d:\n%s", args, text, got, want, said.String())
			}
		}
	}
}
