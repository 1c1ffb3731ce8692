package virtctl

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// effect is what a command line that succeeds must have done.
type effect struct {
	text string // for the page
	// before looks at what there is before the line is run. The function it returns looks whether the effect is there.
	before func(b *bench) (after, error)
}

type after func(p *program) error

// seen is an effect for which nothing has to be looked at before.
func seen(text string, look func(b *bench, p *program) error) effect {
	return effect{text, func(b *bench) (after, error) {
		return func(p *program) error { return look(b, p) }, nil
	}}
}

// all are several effects of one line.
func all(effects ...effect) effect {
	var texts []string
	for _, e := range effects {
		texts = append(texts, e.text)
	}
	return effect{strings.Join(texts, "; "), func(b *bench) (after, error) {
		var looks []after
		for _, e := range effects {
			look, err := e.before(b)
			if err != nil {
				return nil, err
			}
			looks = append(looks, look)
		}
		return func(p *program) error {
			for _, look := range looks {
				if err := look(p); err != nil {
					return err
				}
			}
			return nil
		}, nil
	}}
}

// becomes: an object's value is another than before, and comes to be this one.
func becomes(object, path, want string) effect {
	becomes := "becomes `" + want + "`"
	if want == "" {
		becomes = "becomes empty"
	}
	return effect{fmt.Sprintf("`%s` of %s %s", strings.Trim(path, "{}"), object, becomes), func(b *bench) (after, error) {
		if before, err := b.value(object, path); err != nil || before == want {
			return nil, errors.Join(err, fmt.Errorf("%s of %s is %q before", path, object, before))
		}
		return func(*program) error {
			return b.await(patience, func() error {
				got, err := b.value(object, path)
				if err == nil && got != want {
					err = fmt.Errorf("%s of %s is %q, want %q", path, object, got, want)
				}
				return err
			})
		}, nil
	}}
}

// changes: an object's value comes to be another than before.
func changes(object, path string) effect {
	return effect{fmt.Sprintf("`%s` of %s changes", strings.Trim(path, "{}"), object), func(b *bench) (after, error) {
		before, err := b.value(object, path)
		return func(*program) error {
			return b.await(patience, func() error {
				got, err := b.value(object, path)
				if err == nil && (got == "" || got == before) {
					err = fmt.Errorf("%s of %s is %q, as before", path, object, got)
				}
				return err
			})
		}, err
	}}
}

// stays: a dry run is accepted, and changes nothing.
func stays(object, path string) effect {
	return effect{fmt.Sprintf("`%s` of %s stays", strings.Trim(path, "{}"), object), func(b *bench) (after, error) {
		before, err := b.value(object, path)
		if err == nil && before == "" {
			err = fmt.Errorf("%s of %s is empty", path, object)
		}
		return func(*program) error {
			time.Sleep(3 * time.Second)
			got, err := b.value(object, path)
			if err == nil && got != before {
				err = fmt.Errorf("%s of %s is %q, and was %q", path, object, got, before)
			}
			return err
		}, err
	}}
}

// prints: what is printed matches, and is more than an empty answer.
func prints(text, pattern string) effect {
	return seen(text, func(_ *bench, p *program) error {
		if !regexp.MustCompile(pattern).MatchString(p.out.String()) {
			return fmt.Errorf("find %s in %q", pattern, p.out.String())
		}
		return nil
	})
}

// says: what is said besides the result matches.
func says(text, pattern string) effect {
	return seen(text, func(_ *bench, p *program) error {
		if !regexp.MustCompile(pattern).MatchString(p.errors.String()) {
			return fmt.Errorf("find %s in %q", pattern, p.errors.String())
		}
		return nil
	})
}

// wrote: a file of the folder has this text, and has not had it before.
func wrote(file, pattern string) effect {
	read := func(b *bench) bool {
		text, err := os.ReadFile(filepath.Join(b.folder, file))
		return err == nil && regexp.MustCompile(pattern).Match(text)
	}
	return effect{"the file " + file + " has the content", func(b *bench) (after, error) {
		if read(b) {
			return nil, fmt.Errorf("%s is there before", file)
		}
		return func(*program) error {
			return b.await(30*time.Second, func() error {
				if !read(b) {
					return fmt.Errorf("%s does not have %s", file, pattern)
				}
				return nil
			})
		}, nil
	}}
}

// rebooted: the guest has another boot ID than before.
func rebooted(vmi string) effect {
	// No quotation marks: if a guest that boots gets only the end of a line, its shell would wait for the other one.
	const asked, answer = `echo =$(cat /proc/sys/kernel/random/boot_id)=`, `=([0-9a-f-]{36})=`
	return effect{"the guest's boot ID changes", func(b *bench) (after, error) {
		before, err := b.typed(vmi, asked, answer)
		return func(*program) error {
			return b.await(patience, func() error {
				got, err := b.typed(vmi, asked, answer)
				if err == nil && got == before {
					err = errors.New("the guest's boot ID is as before")
				}
				return err
			})
		}, err
	}}
}

// guest: a command in the Debian guest, by ssh, succeeds after the line, and not before.
func guest(text, command string) effect {
	const remote = "virtctl ssh demo@vmi/debian " + ssh + " -c "
	return effect{text, func(b *bench) (after, error) {
		if _, err := b.shell(remote + "true"); err != nil {
			return nil, err
		}
		if _, err := b.shell(remote + command); err == nil {
			return nil, fmt.Errorf("%s succeeds before", command)
		}
		return func(*program) error {
			return b.await(patience, func() error {
				_, err := b.shell(remote + command)
				return err
			})
		}, nil
	}}
}

// answers: a program on a local port says the words.
func answers(network, address, say, want string) effect {
	return seen(fmt.Sprintf("%s port %s says %q", strings.ToUpper(network), address[strings.LastIndex(address, ":")+1:], want), func(b *bench, p *program) error {
		return b.await(time.Minute, func() error {
			if !p.running() {
				return errEnded
			}
			return greets(network, address, say, want)
		})
	})
}

// echoes: what goes into the program comes out of it.
func echoes(words string) effect {
	return seen(fmt.Sprintf("the guest's echo of %q", words), func(b *bench, p *program) error {
		if _, err := io.WriteString(p.input, words); err != nil {
			return err
		}
		return b.await(time.Minute, func() error {
			switch {
			case p.out.String() == words:
				return nil
			case !p.running():
				return errEnded
			}
			return fmt.Errorf("%q comes out", p.out.String())
		})
	})
}

func greets(network, address, say, want string) error {
	conn, err := net.DialTimeout(network, address, 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, say); err != nil {
		return err
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		return errors.Join(err, fmt.Errorf("%s says %q, want %q", address, got, want))
	}
	return nil
}

// picture: the file is a PNG of a screen.
func picture(file string) effect {
	return seen("the file "+file+" is a PNG of the screen", func(b *bench, _ *program) error {
		data, err := os.ReadFile(filepath.Join(b.folder, file))
		if err != nil {
			return err
		}
		image, err := png.Decode(bytes.NewReader(data))
		if err == nil && (image.Bounds().Dx() < 640 || image.Bounds().Dy() < 400) {
			err = fmt.Errorf("%s is a picture of %s", file, image.Bounds())
		}
		return err
	})
}

// leadsTo: a Service has the address of a VMI's pod.
func leadsTo(service, pods string) effect {
	return effect{fmt.Sprintf("Service %s leads to the launcher pods of `%s`", service, pods), func(b *bench) (after, error) {
		if is, err := b.value("service/"+service, "{.metadata.name}"); err != nil || is != "" {
			return nil, errors.Join(err, fmt.Errorf("service %s is there before", service))
		}
		return func(*program) error {
			return b.await(time.Minute, func() error {
				want := strings.Fields(b.addresses("pods -l "+pods, "{.items[*].status.podIP}"))
				got := strings.Fields(b.addresses("endpointslices -l kubernetes.io/service-name="+service, "{.items[*].endpoints[*].addresses[*]}"))
				slices.Sort(want)
				slices.Sort(got)
				if len(want) == 0 || !slices.Equal(want, got) {
					return fmt.Errorf("service %s leads to %v, want %v", service, got, want)
				}
				return nil
			})
		}, nil
	}}
}

func (b *bench) addresses(objects, path string) string {
	out, err := b.shell("kubectl get " + objects + " -o jsonpath='" + path + "'")
	if err != nil {
		return err.Error()
	}
	return out
}

// logs: a component logs its requests, or does not log them any more.
func logs(component string, verbose bool) effect {
	text := component + " logs more"
	if !verbose {
		text = component + " does not log more any more"
	}
	return seen(text, func(b *bench, _ *program) error {
		return b.await(time.Minute, func() error {
			// From verbosity 3 on, virt-api logs each request.
			mark := fmt.Sprintf("mark-%d", time.Now().UnixNano())
			_, _ = b.shell("kubectl get --raw /apis/subresources.kubevirt.io/v1/namespaces/" + b.namespace + "/virtualmachines/" + mark + "/expand-spec")
			out, err := b.shell("kubectl -n kubevirt logs --since=1m -l kubevirt.io=" + component + " --tail=-1")
			if err == nil && strings.Contains(out, mark) != verbose {
				err = fmt.Errorf("%s logs: %v, want %v", component, !verbose, verbose)
			}
			return err
		})
	})
}

// expands: the VM with its instancetype in it has this many vCPUs.
func expands(vm string, sockets int) effect {
	return seen(fmt.Sprintf("VM %s has the %d vCPUs of its instancetype", vm, sockets), func(b *bench, _ *program) error {
		out, err := b.shell("kubectl get --raw /apis/subresources.kubevirt.io/v1/namespaces/" + b.namespace + "/virtualmachines/" + vm + "/expand-spec")
		if err != nil {
			return err
		}
		return hasCPUs([]byte(out), sockets)
	})
}

// hasCPUs looks at a VM in JSON.
func hasCPUs(text []byte, want int) error {
	var vm struct {
		Spec struct {
			Template struct {
				Spec struct {
					Domain struct {
						CPU struct{ Sockets, Cores, Threads int }
					}
				}
			}
		}
	}
	if err := json.Unmarshal(text, &vm); err != nil {
		return fmt.Errorf("read the VM: %w: %s", err, text)
	}
	c := vm.Spec.Template.Spec.Domain.CPU
	if got := max(c.Sockets, 1) * max(c.Cores, 1) * max(c.Threads, 1); got != want {
		return fmt.Errorf("the VM has %d vCPUs, want %d", got, want)
	}
	return nil
}
