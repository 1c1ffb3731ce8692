package qemuargs

// PanicPort is a port of the ISA bus by which the guest's kernel says that it has panicked. QEMU then ends, with the event
// GUEST_PANICKED before.
type PanicPort struct{}

// PanicCard is a PCI device that does the same as a PanicPort.
type PanicCard struct {
	PCI PCIAddress `json:"pci"`
}

// SoundModel is a kind of sound card.
type SoundModel string

// Sound cards.
const (
	ICH9 SoundModel = "ich9"
	AC97 SoundModel = "ac97"
)

// Sound is a sound card that nobody hears.
type Sound struct {
	Model SoundModel `json:"model"`
	PCI   PCIAddress `json:"pci"`
}

// panicPort is the port that the Linux driver and libvirt know: QEMU's own, and that of the ACPI table.
const panicPort = 0x505

type panicPortProps struct {
	Driver string `json:"driver" rule:"a port of the ISA bus"`
	ID     string `json:"id" rule:"the device's name"`
	Port   int    `json:"ioport" rule:"QEMU's own number"`
}

func (p *PanicPort) args() []Arg {
	if p == nil {
		return nil
	}
	return []Arg{{Flag: "-device", Value: panicPortProps{Driver: "pvpanic", ID: "panic0", Port: panicPort}, Of: Part{Field: "panicPort"}}}
}

type panicCardProps struct {
	Driver string `json:"driver" rule:"a PCI device"`
	ID     string `json:"id" rule:"the device's name"`
	pciPlace
}

func (p *PanicCard) args() []Arg {
	if p == nil {
		return nil
	}
	return []Arg{{Flag: "-device", Value: panicCardProps{Driver: "pvpanic-pci", ID: "panic1", pciPlace: p.PCI.place()}, Of: Part{Field: "panicCard"}}}
}

const soundID, soundBackend = "sound0", "audio0"

type soundProps struct {
	Driver string `json:"driver" from:"model"`
	ID     string `json:"id" rule:"the card's name"`
	pciPlace
	Audiodev string `json:"audiodev,omitempty" from:"model" rule:"where the sound goes"`
}

type codecProps struct {
	Driver   string `json:"driver" rule:"a codec with input and output"`
	ID       string `json:"id" rule:"the codec's name"`
	Bus      string `json:"bus" rule:"the sound card's"`
	CAD      int    `json:"cad" rule:"the codec's number"`
	Audiodev string `json:"audiodev" rule:"where the sound goes"`
}

func (s *Sound) args() []Arg {
	if s == nil {
		return nil
	}
	of := Part{Field: "sound"}
	args := []Arg{{Flag: "-audiodev", Value: Options{{Value: "none", Rule: "the sound goes nowhere"}, {Key: "id", Value: soundBackend, Rule: "the name by which the card finds it"}}, Of: of}}
	if s.Model == AC97 {
		return append(args, Arg{Flag: "-device", Value: soundProps{Driver: "AC97", ID: soundID, pciPlace: s.PCI.place(), Audiodev: soundBackend}, Of: of})
	}
	return append(args, Arg{Flag: "-device", Value: soundProps{Driver: "ich9-intel-hda", ID: soundID, pciPlace: s.PCI.place()}, Of: of},
		Arg{Flag: "-device", Value: codecProps{Driver: "hda-duplex", ID: soundID + "-codec0", Bus: soundID + ".0", CAD: 0, Audiodev: soundBackend}, Of: of, From: "model"})
}
