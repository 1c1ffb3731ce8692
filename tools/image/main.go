// Command image packs files into a container image with one layer, and writes it as a docker-archive tar, which
// "ctr images import" and "docker load" read. It needs no container daemon.
//
//	image --ref localhost/kubeqemu/virt-launcher:dev --file virt-launcher:/usr/bin/virt-launcher:0755 \
//	      --entrypoint /usr/bin/virt-launcher --output virt-launcher.tar
//
// The same content gives the same image digest: entries are sorted, all time stamps are the same
// (SOURCE_DATE_EPOCH, or 0), and every file belongs to one owner.
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run packs one image as the arguments say, and prints a line with its reference, digest and compressed size.
func run(args []string) error {
	request, output, err := parse(args)
	if err != nil {
		return err
	}
	packed, err := request.pack(output)
	if err != nil {
		return fmt.Errorf("pack %s: %w", request.Ref, err)
	}
	fmt.Printf("%s %s, layer %.1f MiB compressed\n", request.Ref, packed.Digest, float64(packed.LayerSize)/(1<<20))
	return nil
}

// parse turns command-line arguments into a request and the path of the archive.
func parse(args []string) (*Request, string, error) {
	request := &Request{Created: time.Unix(0, 0).UTC(), Architecture: "amd64"}
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	output := flags.String("output", "", "`path` of the docker-archive tar to write")
	flags.StringVar(&request.Ref, "ref", "", "`name:tag` of the image")
	flags.StringVar(&request.Architecture, "arch", request.Architecture, "`architecture` of the nodes that the image is for")
	flags.StringVar(&request.User, "user", "", "user (`uid[:gid]`) that the container runs as")
	flags.StringVar(&request.WorkDir, "workdir", "", "working `folder` of the container")
	each(flags, "entrypoint", "`argument` of the entry point; repeat for more", func(v string) error {
		request.Entrypoint = append(request.Entrypoint, v)
		return nil
	})
	each(flags, "env", "environment variable `NAME=VALUE`; may be repeated", func(v string) error {
		request.Env = append(request.Env, v)
		return nil
	})
	each(flags, "label", "image label `NAME=VALUE`; may be repeated", request.addLabel)
	each(flags, "dir", "`folder` whose content becomes the root of the image", func(v string) error {
		request.Root = v
		return nil
	})
	each(flags, "file", "`SRC:DST[:MODE]`, a file to add with an octal mode; may be repeated", request.addFile)
	each(flags, "owner", "`UID:GID` of every file (default 0:0)", request.setOwner)
	if err := flags.Parse(args); err != nil {
		return nil, "", err
	}
	if *output == "" || request.Ref == "" || flags.NArg() > 0 {
		return nil, "", fmt.Errorf("need --output, --ref, and no other argument (have %q)", flags.Args())
	}
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return nil, "", fmt.Errorf("read SOURCE_DATE_EPOCH: %w", err)
		}
		request.Created = time.Unix(seconds, 0).UTC()
	}
	return request, *output, nil
}

// each defines a flag that calls set for every use.
func each(flags *flag.FlagSet, name, usage string, set func(string) error) {
	flags.Func(name, usage, set)
}

func (r *Request) addLabel(v string) error {
	name, value, ok := strings.Cut(v, "=")
	if !ok {
		return fmt.Errorf("label %q is not NAME=VALUE", v)
	}
	if r.Labels == nil {
		r.Labels = map[string]string{}
	}
	r.Labels[name] = value
	return nil
}

func (r *Request) addFile(v string) error {
	parts := strings.Split(v, ":")
	if len(parts) < 2 || len(parts) > 3 || !strings.HasPrefix(parts[1], "/") {
		return fmt.Errorf("file %q is not SRC:/DST[:MODE]", v)
	}
	file := File{Source: parts[0], Path: parts[1], Mode: KeepMode}
	if len(parts) == 3 {
		mode, err := strconv.ParseUint(parts[2], 8, 12)
		if err != nil {
			return fmt.Errorf("read mode of %q: %w", v, err)
		}
		file.Mode = int64(mode)
	}
	r.Files = append(r.Files, file)
	return nil
}

func (r *Request) setOwner(v string) error {
	uid, gid, ok := strings.Cut(v, ":")
	if !ok {
		return fmt.Errorf("owner %q is not UID:GID", v)
	}
	var err error
	if r.UID, err = strconv.Atoi(uid); err != nil {
		return fmt.Errorf("read uid of %q: %w", v, err)
	}
	if r.GID, err = strconv.Atoi(gid); err != nil {
		return fmt.Errorf("read gid of %q: %w", v, err)
	}
	return nil
}
