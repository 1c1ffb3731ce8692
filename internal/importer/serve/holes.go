package serve

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/importer"
)

const (
	// minHole is the least hole that is worth a question, in bytes.
	minHole = 1 << 20
	// maxParts bounds the parts of a file that are looked at for one answer: a guest may have made millions.
	maxParts = 4096
)

// next finds the next part of the disk that may have data, at or behind an offset, and the version of the disk
// that has it.
func (d *disk) next(from int64) (importer.Extent, version, error) {
	of, err := d.version()
	if err != nil {
		return importer.Extent{}, of, err
	}
	extent := importer.Extent{Offset: min(from, of.bytes)}
	extent.Bytes = of.bytes - extent.Offset
	if !d.block && extent.Bytes > 0 {
		if extent, err = d.seek(extent.Offset, of.bytes); err != nil {
			return importer.Extent{}, of, err
		}
	}
	now, err := d.version()
	if err == nil && now != of {
		err = errChanged
	}
	return extent, of, err
}

// seek finds a part of a file with data, whose holes are all smaller than minHole.
func (d *disk) seek(from, end int64) (importer.Extent, error) {
	start, err := d.file.Seek(from, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return importer.Extent{Offset: end}, nil
	}
	if err != nil {
		return importer.Extent{}, fmt.Errorf("look for the claim's data: %w", err)
	}
	upTo := start
	for range maxParts {
		hole, err := d.file.Seek(upTo, unix.SEEK_HOLE)
		if err != nil {
			return importer.Extent{}, fmt.Errorf("look for the claim's holes: %w", err)
		}
		upTo = hole
		data, err := d.file.Seek(hole, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && data-hole >= minHole {
			break
		}
		if err != nil {
			return importer.Extent{}, fmt.Errorf("look for the claim's data: %w", err)
		}
		upTo = data
	}
	start, upTo = min(start, end), min(upTo, end)
	return importer.Extent{Offset: start, Bytes: upTo - start}, nil
}
