package main

import (
	"fmt"
	"slices"
	"strings"
)

func (r result) row(id string) (row, bool) {
	i := slices.IndexFunc(r.Rows, func(row row) bool { return row.ID == id })
	if i < 0 || r.Rows[i].verdict() == unmeasured {
		return row{}, false
	}
	return r.Rows[i], true
}

// numbers is the README's section: a sentence for each row that was measured.
func numbers(r result) string {
	var w strings.Builder
	w.WriteString("![Start times and memory, against bare QEMU, libvirt and the budgets](docs/benchmarks.svg)\n\n")
	middle := func(s series, u unit) string { return number(s.summary().Median) + " " + string(u) }
	ours := func(r row) string { return middle(r.Ours, r.Unit) }
	if start, ok := r.row("start"); ok {
		fmt.Fprintf(&w, "- From “start” to running guest CPUs: %s, %s × bare QEMU with the same arguments",
			ours(start), number(start.ratio().Median))
		if len(start.Beside) > 2 {
			fmt.Fprintf(&w, "; libvirt takes %s, and %s where it has nothing cached, as in every new pod",
				middle(start.Beside[1], start.Unit), middle(start.Beside[2], start.Unit))
		}
		w.WriteString(".\n")
	}
	if apply, ok := r.row("apply"); ok {
		fmt.Fprintf(&w, "- From `kubectl apply` to Running: %s, %s × a plain pod of the same image (%s).\n",
			ours(apply), number(apply.ratio().Median), middle(apply.Beside[0], apply.Unit))
	}
	launcher, ok := r.row("launcher")
	if stopped, ok2 := r.row("around-stopped"); ok && ok2 {
		fmt.Fprintf(&w, "- QEMU and virt-launcher around a VM that has not run yet, besides its RAM: %s private; "+
			"virt-launcher's RSS is %s.\n", ours(stopped), ours(launcher))
	}
	if ten, ok := r.row("around-ten"); ok {
		fmt.Fprintf(&w, "- Around each of ten idle VMs: %s. TCG's translated code is most of that where guests are "+
			"emulated.\n", ours(ten))
	}
	plane, ok := r.row("control-plane")
	if images, ok2 := r.row("images"); ok && ok2 {
		fmt.Fprintf(&w, "- The control plane, idle: %s; all images, compressed: %s.\n", ours(plane), ours(images))
	}
	w.WriteString("\nMedians of one run of `make bench`; the machine, the quartiles, where it goes and which budgets " +
		"hold: [docs/benchmarks.md](docs/benchmarks.md).\n")
	return w.String()
}
