package diskimage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// The clusters of an empty qcow2 image, laid out as "qemu-img create" does (QEMU:
// docs/interop/qcow2.rst).
const (
	clusterBits   = 16
	clusterSize   = 1 << clusterBits
	tableCluster  = 1 // the refcount table
	countsCluster = 2 // the only refcount block, with counts of 16 bits
	l1Cluster     = 3
	sectorSize    = 512
	// l2Covers is how many bytes of the disk an entry of the L1 table covers.
	l2Covers = clusterSize / 8 * clusterSize
	// maxSize is the largest size that QEMU takes: an L1 table has 32 MiB at most.
	maxSize = 32 << 20 / 8 * l2Covers
)

// emptyHeader is the header of version 3.
type emptyHeader struct {
	Magic, Version                      uint32
	BackingOffset                       uint64
	BackingLength, ClusterBits          uint32
	Size                                uint64 // virtual, in bytes
	Encryption, L1Entries               uint32
	L1Offset, TableOffset               uint64
	TableClusters, Snapshots            uint32
	SnapshotsOffset                     uint64
	Incompatible, Compatible, AutoClear uint64
	CountOrder, Length                  uint32 // a count has 1 << CountOrder bits
}

// Create makes an empty qcow2 image of a virtual size in bytes, which is rounded up to whole
// sectors. The image names no backing file: QEMU's command line does, so that no backing file
// is ever read from a header. An existing regular file is overwritten.
func Create(path string, size int64) error {
	if size < 0 || size > maxSize {
		return fmt.Errorf("make a qcow2 image of %d bytes: QEMU takes %d at most", size, int64(maxSize))
	}
	sectors := (size + sectorSize - 1) / sectorSize
	l1Entries := (sectors*sectorSize + l2Covers - 1) / l2Covers
	clusters := l1Cluster + (l1Entries*8+clusterSize-1)/clusterSize
	f, err := openNew(path)
	if err != nil {
		return fmt.Errorf("make a qcow2 image: %w", err)
	}
	header := emptyHeader{
		Magic: 0x514649fb /* QFI\xfb */, Version: 3, ClusterBits: clusterBits, Size: uint64(sectors * sectorSize),
		L1Entries: uint32(l1Entries), L1Offset: l1Cluster << clusterBits,
		TableOffset: tableCluster << clusterBits, TableClusters: 1, CountOrder: 4, Length: 104,
	}
	counts := make([]uint16, clusters)
	for i := range counts {
		counts[i] = 1
	}
	for _, part := range []struct {
		cluster int64
		data    any
	}{{0, header}, {tableCluster, uint64(countsCluster << clusterBits)}, {countsCluster, counts}} {
		if err == nil {
			err = binary.Write(io.NewOffsetWriter(f, part.cluster<<clusterBits), binary.BigEndian, part.data)
		}
	}
	if err == nil { // the L1 table is a hole: no part of the disk has been written
		err = f.Truncate(clusters << clusterBits)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("make a qcow2 image: %w", err)
	}
	return nil
}

// openNew makes a regular file, or empties the one that is there. A user who may run
// programs in the pod can put another kind of file at the path: opening a FIFO could
// block for ever. Such a file is refused.
func openNew(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
