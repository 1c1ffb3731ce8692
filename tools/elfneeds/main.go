// Command elfneeds prints the shared libraries that ELF files need, directly or not, for a machine whose dynamic loader does
// not run here:
//
//	elfneeds -path usr/lib/aarch64-linux-gnu:other program...
//
// It fails if a library is in none of the folders, if a file is for another machine than the first, or if no library defines a
// symbol that a file must have.
package main

import (
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	path := flag.String("path", "", "`folders` to look for libraries in, with colons between them")
	flag.Parse()
	n := &needs{folders: strings.Split(*path, ":"), objects: map[string]*object{}}
	err := n.follow(flag.Args())
	if err == nil {
		err = n.unresolved()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "elfneeds:", err)
		os.Exit(1)
	}
	fmt.Println(strings.Join(n.libraries, "\n"))
}

// object is an ELF file: the libraries that it names, and its symbols.
type object struct {
	path             string
	needed           []string
	defines, imports map[string]bool
}

type needs struct {
	folders   []string
	machine   elf.Machine
	objects   map[string]*object // by the library's name, or a program's path
	libraries []string           // paths, in the order in which they were found
}

// follow reads the files, and the libraries that they need.
func (n *needs) follow(paths []string) error {
	for _, path := range paths {
		if _, known := n.objects[path]; known {
			continue
		}
		o, err := n.read(path)
		if errors.Is(err, errStatic) {
			continue
		}
		if err != nil {
			return err
		}
		n.objects[path] = o
		for _, name := range o.needed {
			if n.objects[name] != nil {
				continue
			}
			found, err := n.find(name)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			n.objects[name] = &object{} // its own needs come next
			n.libraries = append(n.libraries, found)
			if err := n.follow([]string{found}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n *needs) find(name string) (string, error) {
	for _, folder := range n.folders {
		path := filepath.Join(folder, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no library %s in %s", name, strings.Join(n.folders, ", "))
}

// errStatic means that a file needs no dynamic loader.
var errStatic = errors.New("not dynamic")

func (n *needs) read(path string) (*object, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	defer f.Close()
	if n.machine == 0 {
		n.machine = f.Machine
	}
	if f.Machine != n.machine {
		return nil, fmt.Errorf("%s is for %s, and others are for %s", path, f.Machine, n.machine)
	}
	o := &object{path: path, defines: map[string]bool{}, imports: map[string]bool{}}
	if o.needed, err = f.ImportedLibraries(); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	symbols, err := f.DynamicSymbols()
	if errors.Is(err, elf.ErrNoSymbols) {
		return nil, errStatic
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	for _, s := range symbols {
		switch name := s.Name + "@" + s.Version; {
		case s.Section != elf.SHN_UNDEF:
			o.defines[name], o.defines[s.Name+"@"] = true, true
		case elf.ST_BIND(s.Info) != elf.STB_WEAK:
			o.imports[name] = true
		}
	}
	return o, nil
}

// unresolved fails if a symbol that must be there is nowhere.
func (n *needs) unresolved() error {
	defined := map[string]bool{}
	for _, o := range n.objects {
		for name := range o.defines {
			defined[name] = true
		}
	}
	var missing []string
	for _, o := range n.objects {
		for name := range o.imports {
			if !defined[name] {
				missing = append(missing, filepath.Base(o.path)+" wants "+name)
			}
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		return fmt.Errorf("symbols that no library has: %s", strings.Join(missing, ", "))
	}
	return nil
}
